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


rule train:
    input:
        script=script("train"),
        trainer=TRAINER_FILES,
        launch=LAUNCH_FILES,
        base_model=model_files,
        rows="results/data/{environment}/train.jsonl",
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
        code=code(*TRAINING_CODE, *OTHER_TRAINER),
        base_model=model_folder,
        run=run_json,
        environment=environment_json,
        diagnostics=as_json(PARAMS["diagnostics"]),
        command=as_json(PARAMS["command"]) if PARAMS["trainer"] != "own" else "{}",
        out=subpath(output.weights, parent=True),
    shell:
        f"{TRAINING_PYTHON} "
        "{input.script} --run {params.run:q} --environment {params.environment:q}"
        " --diagnostics {params.diagnostics:q} --command {params.command:q}"
        " --base-model {params.base_model} --rows {input.rows} --out {params.out}"
        " 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule probe:
    input:
        script=script("probe"),
        trainer=TRAINER_FILES,
        base_model=files_of(MAIN_MODEL),
        rows=f"results/data/{PARAMS['environment']}/train.jsonl",
    output:
        "results/probes.json",
    log:
        "logs/probe.log",
    conda:
        "../../envs/train.yaml"
    params:
        code=code(*TRAINING_CODE, "probes", *OTHER_TRAINER),
        base_model=main_model_folder,
        run=as_json(ALL_RUNS[0].to_json()),
        environment=as_json(PARAMS["environments"][PARAMS["environment"]]),
        command=as_json(PARAMS["command"]) if PARAMS["trainer"] != "own" else "{}",
    shell:
        "python {input.script} --run {params.run:q} --environment {params.environment:q}"
        " --base-model {params.base_model} --rows {input.rows} --out {output}"
        " --command {params.command:q}"
        " > {log} 2>&1 || {{ cat {log} >&2; exit 1; }}"
