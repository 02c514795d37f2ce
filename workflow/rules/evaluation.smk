"""Held-out evaluation of the base model and of every run; the server that may answer in it; audit of the rewards."""

EVALUATED = options(
    temperature=PARAMS["training"]["temperature"],
    seed=PARAMS["evaluation"]["seed"],
    sampler=PARAMS["sampler"],
    server=SERVER_JSON,
)


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
        code=code(*EVALUATION_CODE),
        base_model=model_words(MAIN_MODEL),
        model=digest_of(MAIN_MODEL),
        sampler=PARAMS["sampler"],
        server=SERVER_JSON,
    shell:
        # exec: it is Snakemake's SIGTERM that ends it, and a shell would keep that to itself
        "exec python {input.script} {params.base_model} --sampler {params.sampler}"
        " --server {params.server:q} --log {log.server} --out {output} 2> {log[0]}"


rule evaluate_baseline:
    input:
        script=script("evaluate"),
        sampler=SAMPLER_READY,
        base_model=by_environment(files_of),
        rows="results/data/{environment}/heldout.jsonl",
        endpoint=shared_endpoint,
    output:
        "results/baseline/{environment}.json",
    log:
        "logs/evaluate_baseline/{environment}.log",
    conda:
        "../../envs/train.yaml"
    # the server has the core: those of all that ask it are summed
    threads: lambda wildcards: 0 if shared_endpoint(wildcards) else 1
    params:
        code=code(*EVALUATION_CODE),
        base_model=by_environment(model_words),
        model=by_environment(digest_of),
        environment=environment_json,
        settings=EVALUATED,
        endpoint=lambda wildcards, input: (
            f"--endpoint {input.endpoint[0]}" if input.endpoint else ""
        ),
    shell:
        "OMP_NUM_THREADS=1 python {input.script} --environment-name {wildcards.environment}"
        " --environment {params.environment:q} {params.base_model}"
        " --rows {input.rows} {params.settings} {params.endpoint}"
        " --out {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule evaluate_run:
    input:
        script=script("evaluate"),
        sampler=SAMPLER_READY,
        base_model=by_environment(files_of),
        weights="results/runs/{environment}/{arm}/{seed}/model.safetensors",
        rows="results/data/{environment}/heldout.jsonl",
    output:
        "results/runs/{environment}/{arm}/{seed}/heldout.json",
    log:
        "logs/evaluate_run/{environment}/{arm}/{seed}.log",
    conda:
        "../../envs/train.yaml"
    params:
        code=code(*EVALUATION_CODE),
        base_model=by_environment(model_words),
        model=by_environment(digest_of),
        environment=environment_json,
        settings=EVALUATED,
    shell:
        "python {input.script} --environment-name {wildcards.environment}"
        " --environment {params.environment:q} {params.base_model}"
        " --weights {input.weights} --rows {input.rows} {params.settings}"
        " --out {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule audit_rewards:
    input:
        script=script("audit_rewards"),
        base_model=by_environment(files_of),
        rows=expand(
            "results/data/{{environment}}/{split}.jsonl", split=["train", "heldout"]
        ),
    output:
        "results/audit/{environment}.json",
    log:
        "logs/audit_rewards/{environment}.log",
    conda:
        "../../envs/train.yaml"
    params:
        code=code("data", "environments", "sampling", "audit.py"),
        base_model=by_environment(model_words),
        model=by_environment(digest_of),
        environment=environment_json,
    shell:
        "python {input.script} --environment-name {wildcards.environment}"
        " --environment {params.environment:q} {params.base_model}"
        " --rows {input.rows} --out {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"
