"""Held-out evaluation of the base model and of every run; audit of the rewards."""


rule evaluate_baseline:
    input:
        script=script("evaluate"),
        sources=ROLLOUT_SOURCES + sources("evaluation.py"),
        model_config=MODEL_CONFIG,
        base_model=base_model(),
        rows="results/data/{environment}/heldout.jsonl",
    output:
        "results/baseline/{environment}.json",
    log:
        "logs/evaluate_baseline/{environment}.log",
    conda:
        "../../envs/train.yaml"
    params:
        base_model=subpath(input.model_config, parent=True),
        environment=environment_json,
        temperature=PARAMS["training"]["temperature"],
        seed=PARAMS["evaluation"]["seed"],
    shell:
        "python {input.script} --environment-name {wildcards.environment}"
        " --environment {params.environment:q} --base-model {params.base_model}"
        " --rows {input.rows} --temperature {params.temperature} --seed {params.seed}"
        " --out {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule evaluate_run:
    input:
        script=script("evaluate"),
        sources=ROLLOUT_SOURCES + sources("evaluation.py"),
        model_config=MODEL_CONFIG,
        base_model=base_model(),
        weights="results/runs/{environment}/{arm}/{seed}/model.safetensors",
        rows="results/data/{environment}/heldout.jsonl",
    output:
        "results/runs/{environment}/{arm}/{seed}/heldout.json",
    log:
        "logs/evaluate_run/{environment}/{arm}/{seed}.log",
    conda:
        "../../envs/train.yaml"
    params:
        base_model=subpath(input.model_config, parent=True),
        environment=environment_json,
        temperature=PARAMS["training"]["temperature"],
        seed=PARAMS["evaluation"]["seed"],
    shell:
        "python {input.script} --environment-name {wildcards.environment}"
        " --environment {params.environment:q} --base-model {params.base_model}"
        " --weights {input.weights} --rows {input.rows} --temperature {params.temperature}"
        " --seed {params.seed} --out {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule audit_rewards:
    input:
        script=script("audit_rewards"),
        sources=sources("data", "environments", "sampling", "audit.py"),
        model_config=MODEL_CONFIG,
        base_model=base_model(),
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
        base_model=subpath(input.model_config, parent=True),
        environment=environment_json,
    shell:
        "python {input.script} --environment-name {wildcards.environment}"
        " --environment {params.environment:q} --base-model {params.base_model}"
        " --rows {input.rows} --out {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"
