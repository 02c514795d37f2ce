"""Training of every arm and seed, and the check of the case's trainer."""


# the package index may be out of the reach of a cluster's nodes
localrules:
    build_environment,
    compare_stages,


rule build_environment:
    # of a trainer or a sampler whose packages are not ours
    input:
        # two gigabytes are not built again for an argument parser
        script=ancient(script("build_env")),
        requirements=str(Path(ROOT, "envs", "{name}.txt")),
    output:
        # kept while the rule runs: what it says may be installed already
        update(str(Path(ROOT, ".envs", "{name}.ready"))),
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
        code=code("serve", *SERVED),
        model=by_environment(digest_of),
        settings=lambda w, output: settings_digest(
            STUDY.serving_policies(Path(output[0]))
        ),
    shell:
        "exec python {input.script} --study results/study.json --policies"
        " --log {log.server} --out {output} 2> {log[0]}"


rule train:
    input:
        script=script("train"),
        needed=TRAINER_FILES + LAUNCH_FILES + (SAMPLER_READY if TRAINED_ON_VLLM else []),
        base_model=by_environment(files_of),
        rows="data/splits/{environment}/train.jsonl",
        endpoint=lambda w: file_or_none(STUDY.shared_server(STUDY.run(name_of(w)))),
    output:
        weights="results/runs/{environment}/{arm}/{seed}/model.safetensors",
        metrics="results/runs/{environment}/{arm}/{seed}/metrics.jsonl",
        rollouts="results/runs/{environment}/{arm}/{seed}/rollouts.jsonl",
        timings="results/runs/{environment}/{arm}/{seed}/timings.jsonl",
        shadow="results/runs/{environment}/{arm}/{seed}/shadow.json",
    log:
        "logs/train/{environment}/{arm}/{seed}.log",
    conda:
        "../../envs/train.yaml"
    threads: LAUNCH.processes
    params:
        code=lambda w: training_code(w.environment, faults_of(STUDY.run(name_of(w)))),
        model=by_environment(digest_of),
        settings=lambda w: settings_digest(STUDY.training(name_of(w))),
    shell:
        f"{TRAINING_PYTHON} "
        "{input.script} --study results/study.json"
        " --run {wildcards.environment}/{wildcards.arm}/{wildcards.seed}"
        " --out results/runs/{wildcards.environment}/{wildcards.arm}/{wildcards.seed}"
        " 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule check_case:
    input:
        script=script("check_case"),
        needed=TRAINER_FILES,
        base_model=files_of(MAIN_MODEL),
        rows=f"data/splits/{PARAMS.environment}/train.jsonl",
    output:
        "results/check.json",
    log:
        "logs/check_case.log",
    # the first answer
    priority: 2
    conda:
        "../../envs/train.yaml"
    params:
        code=checking_code(),
        model=digest_of(MAIN_MODEL),
        settings=settings_digest(STUDY.checking()),
    shell:
        "python {input.script} --study results/study.json --out {output}"
        " > {log} 2>&1 || {{ cat {log} >&2; exit 1; }}"


checkpoint compare_stages:
    # before the first look: arms that are to the byte the case or the control have no runs
    input:
        script=script("compare_stages"),
        shadows=run_files("shadow.json", STUDY.comparing().runs),
    output:
        "results/tables/unchanged.json",
    log:
        "logs/compare_stages.log",
    conda:
        "../../envs/train.yaml"
    params:
        code=code("compare_stages"),
        settings=settings_digest(STUDY.comparing()),
    shell:
        "python {input.script} --study results/study.json --out {output}"
        " 2> {log} || {{ cat {log} >&2; exit 1; }}"
