"""Training of every arm and seed, and the probes of the case's trainer."""


# the package index may be out of the reach of a cluster's nodes
localrules:
    build_environment,


rule build_environment:
    # of a trainer or a sampler whose packages are not ours
    input:
        # two gigabytes are not built again for an argument parser
        script=ancient(script("build_env")),
        requirements=str(Path(ROOT, "envs", "{name}.txt")),
    output:
        # kept while the rule runs: what it says may be installed already
        update(str(Path(ROOT, ".envs", "{name}", "ready"))),
    log:
        "logs/build_environment/{name}.log",
    conda:
        "../../envs/train.yaml"
    shell:
        "python {input.script} {wildcards.name} > {log} 2>&1 || {{ cat {log} >&2; exit 1; }}"


rule serve_policies:
    # of runs that share a server, while they train: one group with them
    input:
        script=script("serve"),
        sampler=SAMPLER_READY,
        base_model=by_environment(files_of),
    output:
        service("results/server/{environment}/{server}/endpoint.json"),
    log:
        "logs/serve_policies/{environment}/{server}.log",
        server="logs/serve_policies/{environment}/{server}.server.log",
    conda:
        "../../envs/train.yaml"
    # trainers wait while it works
    threads: 0
    params:
        base_model=by_environment(model_words),
        model=by_environment(digest_of),
        server=as_json({**SERVER, "port": 0}),
        policies=lambda wildcards, output: len(trained_with(output[0])),
        lora_r=lambda wildcards, output: max(
            run.training.lora_r for run in trained_with(output[0])
        ),
    shell:
        "exec python {input.script} {params.base_model} --sampler vllm"
        " --server {params.server:q} --policies {params.policies} --lora-r {params.lora_r}"
        " --log {log.server} --out {output} 2> {log[0]}"


rule train:
    input:
        script=script("train"),
        needed=TRAINER_FILES + LAUNCH_FILES + (SAMPLER_READY if TRAINED_ON_VLLM else []),
        base_model=by_environment(files_of),
        rows="results/data/{environment}/train.jsonl",
        endpoint=policies_endpoint if SHARED else [],
    output:
        weights="results/runs/{environment}/{arm}/{seed}/model.safetensors",
        metrics="results/runs/{environment}/{arm}/{seed}/metrics.jsonl",
        rollouts="results/runs/{environment}/{arm}/{seed}/rollouts.jsonl",
        timings="results/runs/{environment}/{arm}/{seed}/timings.jsonl",
    log:
        "logs/train/{environment}/{arm}/{seed}.log",
    conda:
        "../../envs/train.yaml"
    threads: LAUNCH["processes"]
    params:
        code=code(*TRAINING_CODE, *TRAINING_SERVER),
        base_model=by_environment(model_words),
        model=by_environment(digest_of),
        run=run_json,
        environment=environment_json,
        settings=options(diagnostics=as_json(PARAMS["diagnostics"]), command=COMMAND),
        sampling=sampling_words if TRAINED_ON_VLLM else "",
    shell:
        f"{TRAINING_PYTHON} "
        "{input.script} --run {params.run:q} --environment {params.environment:q}"
        " {params.settings}"
        " {params.base_model} --rows {input.rows} {params.sampling}"
        " --out results/runs/{wildcards.environment}/{wildcards.arm}/{wildcards.seed}"
        " 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule probe:
    input:
        script=script("probe"),
        needed=TRAINER_FILES,
        base_model=files_of(MAIN_MODEL),
        rows=f"results/data/{PARAMS['environment']}/train.jsonl",
    output:
        "results/probes.json",
    log:
        "logs/probe.log",
    conda:
        "../../envs/train.yaml"
    params:
        code=code(*TRAINING_CODE, "probes", "probes/texts.yaml"),
        base_model=model_words(MAIN_MODEL),
        model=digest_of(MAIN_MODEL),
        run=as_json(ALL_RUNS[0].to_json()),
        environment=as_json(PARAMS["environments"][PARAMS["environment"]]),
        command=COMMAND,
    shell:
        "python {input.script} --run {params.run:q} --environment {params.environment:q}"
        " {params.base_model} --rows {input.rows} --out {output}"
        " --command {params.command:q}"
        " > {log} 2>&1 || {{ cat {log} >&2; exit 1; }}"
