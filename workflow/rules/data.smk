"""What comes from outside. Rows: read or generated, checked, split. Base models of the hub: fetched. Packages: installed."""


# the hub and the package index may be out of the reach of a cluster's nodes
localrules:
    prepare_data,
    fetch_model,
    build_environment,


rule prepare_data:
    input:
        script=script("prepare_data"),
        rows=row_files,
    output:
        train="data/splits/{environment}/train.jsonl",
        heldout="data/splits/{environment}/heldout.jsonl",
        manifest="data/splits/{environment}/manifest.json",
    log:
        "logs/prepare_data/{environment}.log",
    # the check of the case, the first answer, waits for no other environment's rows
    priority: lambda w: 3 if w.environment == PARAMS.environment else 1
    conda:
        TRAIN_PINS
    params:
        code=lambda w: code("prepare_data", environment(w.environment)),
        settings=lambda w: settings_digest(STUDY.data_settings(w.environment)),
        out=subpath(output.train, parent=True),
    shell:
        "python {input.script} --study results/study.json --environment {wildcards.environment}"
        " --out {params.out} 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule fetch_model:
    # from the hub, before jobs race for it
    input:
        # gigabytes are not fetched again for an argument parser
        script=ancient(script("fetch_model")),
    output:
        str(Path(ROOT, ".models", "{model}", "manifest.json")),
    log:
        "logs/fetch_model/{model}.log",
    conda:
        TRAIN_PINS
    params:
        model=lambda w: f"{FETCHED[w.model].name}@{FETCHED[w.model].revision}",
        out=subpath(output[0], parent=True),
    shell:
        "python {input.script} --model {params.model} --out {params.out} 2> {log}"
        " || {{ cat {log} >&2; exit 1; }}"


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
        TRAIN_PINS
    shell:
        "python {input.script} {wildcards.name} > {log} 2>&1 || {{ cat {log} >&2; exit 1; }}"
