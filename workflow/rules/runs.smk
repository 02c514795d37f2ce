"""Runs, from the base model to the report: each arm is trained, evaluated and looked at over its seeds, and its cause judged."""

TABLES = expand(
    "results/tables/{table}.csv", table=["runs", "arms", "verdicts", "curves"]
)
CHARTS = [
    chart["name"]
    for chart in read_yaml(Path(ROOT, "src/rlvr_debug/report/charts.yaml"))
]
BASELINES = expand("results/baseline/{environment}.json", environment=ENVIRONMENTS)
# which arms change nothing, who runs next, and the tables are decided by one script
DECIDED_BY = code("decide", *CAUSES, *SETTINGS)


# a few seconds each: not worth a place in a cluster's queue
localrules:
    compare_stages,
    decide_look,
    write_tables,
    draw_charts,
    write_report,


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
        TRAIN_PINS
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
        TRAIN_PINS
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
        TRAIN_PINS
    params:
        code=lambda w: evaluation_code(w.environment),
        model=by_environment(digest_of),
        settings=lambda w: settings_digest(STUDY.evaluation(w.environment, name_of(w))),
    shell:
        "python {input.script} --study results/study.json --environment {wildcards.environment}"
        " --run {wildcards.environment}/{wildcards.arm}/{wildcards.seed}"
        " --out {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"


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
        TRAIN_PINS
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
        script=script("decide"),
        shadows=run_files("shadow.json", STUDY.comparing().runs),
    output:
        "results/tables/unchanged.json",
    log:
        "logs/compare_stages.log",
    conda:
        TRAIN_PINS
    params:
        code=DECIDED_BY,
        settings=settings_digest(STUDY.comparing()),
    shell:
        "python {input.script} unchanged --study results/study.json"
        " 2> {log} || {{ cat {log} >&2; exit 1; }}"


checkpoint decide_look:
    # who runs next, after the runs that the look before chose? Of the sequential design, and where phases are gated
    input:
        script=script("decide"),
        before=lambda w: look_files(int(w.look) - 1),
        metrics=lambda w: run_files(
            "metrics.jsonl", STUDY.chosen(look_after(int(w.look) - 1))
        ),
        heldout=lambda w: run_files(
            "heldout.json", STUDY.chosen(look_after(int(w.look) - 1))
        ),
        baselines=BASELINES,
        check="results/check.json",
    output:
        "results/tables/look_{look}.json",
    log:
        "logs/decide_look/{look}.log",
    conda:
        TRAIN_PINS
    params:
        code=DECIDED_BY,
        settings=settings_digest(
            STUDY.runs, STUDY.phases, PARAMS.phases, STUDY.judged_by
        ),
        last=lambda w, input: f"--last {input.before}" if input.before else "",
    shell:
        "python {input.script} look --study results/study.json {params.last}"
        " 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule write_tables:
    input:
        script=script("decide"),
        metrics=lambda w: run_files("metrics.jsonl", chosen()),
        heldout=lambda w: run_files("heldout.json", chosen()),
        look=lambda w: look_files(last_look().number),
        baselines=BASELINES,
        check="results/check.json",
    output:
        runs="results/tables/runs.csv",
        arms="results/tables/arms.csv",
        verdicts="results/tables/verdicts.csv",
        curves="results/tables/curves.csv",
        metrics="results/metrics.json",
    log:
        "logs/write_tables.log",
    conda:
        TRAIN_PINS
    params:
        code=DECIDED_BY,
        settings=settings_digest(
            STUDY.runs, STUDY.phases, STUDY.unmapped, STUDY.judged_by
        ),
        last=lambda w, input: f"--last {input.look}" if input.look else "",
    shell:
        "python {input.script} tables --study results/study.json {params.last}"
        " 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule draw_charts:
    input:
        script=script("draw_charts"),
        tables=TABLES,
    output:
        expand("results/charts/{name}.svg", name=CHARTS),
    log:
        "logs/draw_charts.log",
    conda:
        TRAIN_PINS
    params:
        code=code("draw_charts"),
        settings=settings_digest(STUDY.judged_by),
        out=subpath(output[0], parent=True),
    shell:
        "python {input.script} --study results/study.json --out {params.out} 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule write_report:
    # one page that needs nothing beside itself
    input:
        script=script("write_report"),
        tables=TABLES,
        # what the owner of the study writes, and no rule
        notes=sorted(map(str, Path("notes").glob("*.md"))),
        # of one seed per arm: its viewer shows examples
        rollouts=lambda w: run_files("rollouts.jsonl", first_seeds(chosen())),
        check="results/check.json",
    output:
        "results/report.html",
    log:
        "logs/write_report.log",
    conda:
        TRAIN_PINS
    params:
        code=code("write_report", *CAUSES),
        settings=settings_digest(STUDY.judged_by),
    shell:
        "python {input.script} --study results/study.json"
        " --out {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"
