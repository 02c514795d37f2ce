"""Held-out evaluation of the base model, by us and by verifiers, and of every run; the server that may answer in it; audit
of the rewards.
"""


rule serve_base_model:
    # runs while its consumers do, in one group with them
    input:
        script=script("serve"),
        sampler=SAMPLER_READY,
        base_model=files_of(MAIN_MODEL),
    output:
        service("results/server/endpoint.json"),
    log:
        "logs/serve_base_model.log",
        server="logs/server.log",
    conda:
        "../../envs/train.yaml"
    params:
        code=code("serve", *SERVED),
        model=digest_of(MAIN_MODEL),
        settings=settings_digest(STUDY.serving()),
    shell:
        # exec: it is Snakemake's SIGTERM that ends it, and a shell would keep that to itself
        "exec python {input.script} --study results/study.json --log {log.server} --out {output}"
        " 2> {log[0]}"


rule evaluate_baseline:
    input:
        script=script("evaluate"),
        sampler=SAMPLER_READY,
        base_model=by_environment(files_of),
        rows="data/splits/{environment}/heldout.jsonl",
        endpoint=lambda w: file_or_none(STUDY.baseline_server(w.environment)),
    output:
        "results/baseline/{environment}.json",
    log:
        "logs/evaluate_baseline/{environment}.log",
    conda:
        "../../envs/train.yaml"
    # the server has the core: those of all that ask it are summed
    threads: lambda w: 0 if STUDY.baseline_server(w.environment) else 1
    params:
        code=lambda w: evaluation_code(w.environment),
        model=by_environment(digest_of),
        settings=lambda w: settings_digest(STUDY.evaluation(w.environment)),
    shell:
        "OMP_NUM_THREADS=1 python {input.script} --study results/study.json"
        " --environment {wildcards.environment}"
        " --out {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule evaluate_run:
    input:
        script=script("evaluate"),
        sampler=SAMPLER_READY,
        base_model=by_environment(files_of),
        weights="results/runs/{environment}/{arm}/{seed}/model.safetensors",
        rows="data/splits/{environment}/heldout.jsonl",
    output:
        "results/runs/{environment}/{arm}/{seed}/heldout.json",
    log:
        "logs/evaluate_run/{environment}/{arm}/{seed}.log",
    conda:
        "../../envs/train.yaml"
    params:
        code=lambda w: evaluation_code(w.environment),
        model=by_environment(digest_of),
        settings=lambda w: settings_digest(STUDY.evaluation(w.environment, name_of(w))),
    shell:
        "python {input.script} --study results/study.json --environment {wildcards.environment}"
        " --run {wildcards.environment}/{wildcards.arm}/{wildcards.seed}"
        " --out {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule evaluate_by_verifiers:
    # the base model once more, by vf-eval, which asks the same server: one group with it
    input:
        script=script("evaluate_by_verifiers"),
        needed=ready(["verifiers"]),
        rows=expand(
            f"data/splits/{PARAMS.environment}/{{split}}.jsonl",
            split=["train", "heldout"],
        ),
        endpoint=lambda w: file_or_none(STUDY.baseline_server(PARAMS.environment)),
    output:
        "results/baseline/verifiers.json",
    log:
        "logs/evaluate_by_verifiers.log",
    conda:
        "../../envs/train.yaml"
    threads: 0
    params:
        code=code(
            "evaluate_by_verifiers", "tasksets.py", environment(PARAMS.environment)
        ),
        model=digest_of(MAIN_MODEL),
        settings=settings_digest(
            STUDY.evaluation(PARAMS.environment), PARAMS.evaluation.verifiers_rows
        ),
        environment=PARAMS.environment,
    shell:
        "python {input.script} --study results/study.json --environment {params.environment}"
        " --out {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule compare_evaluations:
    # not in that group, whose jobs run at once
    input:
        script=script("compare_evaluations"),
        rows=f"data/splits/{PARAMS.environment}/heldout.jsonl",
        ours=f"results/baseline/{PARAMS.environment}.json",
        verifiers="results/baseline/verifiers.json",
    output:
        VERIFIERS_TABLE,
    log:
        "logs/compare_evaluations.log",
    conda:
        "../../envs/train.yaml"
    params:
        code=code("compare_evaluations", environment(PARAMS.environment)),
        environment=PARAMS.environment,
    shell:
        "python {input.script} --study results/study.json --environment {params.environment}"
        " --ours {input.ours} --verifiers {input.verifiers} --out {output}"
        " 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule audit_rewards:
    input:
        script=script("audit_rewards"),
        base_model=by_environment(files_of),
        rows=expand(
            "data/splits/{{environment}}/{split}.jsonl", split=["train", "heldout"]
        ),
    output:
        "results/audit/{environment}.json",
    log:
        "logs/audit_rewards/{environment}.log",
    conda:
        "../../envs/train.yaml"
    params:
        code=lambda w: code("audit_rewards", environment(w.environment)),
        model=by_environment(digest_of),
        settings=lambda w: settings_digest(
            STUDY.model_folder(w.environment), PARAMS.settings(w.environment)
        ),
    shell:
        "python {input.script} --study results/study.json --environment {wildcards.environment}"
        " --out {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"
