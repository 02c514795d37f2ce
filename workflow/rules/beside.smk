"""What no verdict follows from: the base model as verifiers evaluates it, beside ours, and the audit of the rewards."""


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
        TRAIN_PINS
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
        TRAIN_PINS
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
        TRAIN_PINS
    params:
        code=lambda w: code("audit_rewards", environment(w.environment)),
        model=by_environment(digest_of),
        settings=lambda w: settings_digest(
            STUDY.model_folder(w.environment), PARAMS.settings(w.environment)
        ),
    shell:
        "python {input.script} --study results/study.json --environment {wildcards.environment}"
        " --out {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"
