"""Tables, verdicts, charts and the report: what people read."""

VERDICT_SETTINGS = as_json({**PARAMS["verdicts"], "environment": PARAMS["environment"]})
VERDICT_CODE = (
    "causes/__init__.py",
    "causes/base.py",
    "verdicts",
    "report/tables.py",
)
TABLES = expand(
    "results/tables/{table}.csv", table=["runs", "arms", "verdicts", "curves"]
)
CHARTS = [
    chart["name"]
    for chart in read_yaml(Path(ROOT, "src/rlvr_debug/report/charts.yaml"))
]
BASELINES = expand("results/baseline/{environment}.json", environment=ENVIRONMENTS)


# a few seconds each: not worth a place in a cluster's queue
localrules:
    decide_phase,
    write_tables,
    draw_charts,
    write_report,


checkpoint decide_phase:
    # only where params.yaml gates phases: did this one find a cause?
    input:
        script=script("decide_phase"),
        metrics=lambda w: run_files("metrics.jsonl", runs_until(int(w.phase))),
        heldout=lambda w: run_files("heldout.json", runs_until(int(w.phase))),
        baselines=BASELINES,
        probes="results/probes.json",
    output:
        "results/tables/phase_{phase}.json",
    log:
        "logs/decide_phase/{phase}.log",
    conda:
        "../../envs/train.yaml"
    params:
        code=code(*VERDICT_CODE),
        causes=told_causes(),
        runs=lambda w: as_json([run.to_json() for run in runs_until(int(w.phase))]),
        hypotheses=lambda w: as_json(
            sorted(slug for slug, phase in PHASE_OF.items() if phase <= int(w.phase))
        ),
        settings=VERDICT_SETTINGS,
    shell:
        # not an argument: the system limits each to 128 KiB
        "printf %s {params.runs:q}"
        " | python {input.script} --phase {wildcards.phase} --runs /dev/stdin"
        " --hypotheses {params.hypotheses:q} --settings {params.settings:q}"
        " --results results --out {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule write_tables:
    input:
        script=script("write_tables"),
        metrics=lambda w: run_files("metrics.jsonl", runs_until(last_phase())),
        heldout=lambda w: run_files("heldout.json", runs_until(last_phase())),
        gates=lambda w: [
            f"results/tables/phase_{p}.json" for p in GATES if p <= last_phase()
        ],
        baselines=BASELINES,
        probes="results/probes.json",
    output:
        runs="results/tables/runs.csv",
        arms="results/tables/arms.csv",
        verdicts="results/tables/verdicts.csv",
        curves="results/tables/curves.csv",
        metrics="results/metrics.json",
    log:
        "logs/write_tables.log",
    conda:
        "../../envs/train.yaml"
    params:
        code=code(*VERDICT_CODE),
        causes=told_causes(),
        runs=as_json([run.to_json() for run in ALL_RUNS]),
        phases=as_json(PHASE_OF),
        unmapped=as_json(unmapped(PARAMS)),
        settings=VERDICT_SETTINGS,
    shell:
        # not an argument: the system limits each to 128 KiB
        "printf %s {params.runs:q}"
        " | python {input.script} --runs /dev/stdin --phases {params.phases:q}"
        " --unmapped {params.unmapped:q} --gates {input.gates} --settings {params.settings:q} --results results"
        " 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule draw_charts:
    input:
        script=script("draw_charts"),
        looks=str(Path(ROOT, "src/rlvr_debug/report/looks.yaml")),
        tables=TABLES,
    output:
        expand("results/charts/{name}.svg", name=CHARTS),
    log:
        "logs/draw_charts.log",
    conda:
        "../../envs/train.yaml"
    params:
        code=code("report/charts.py"),
        minimum_effect=PARAMS["verdicts"]["minimum_effect"],
        out=subpath(output[0], parent=True),
    shell:
        "python {input.script} --tables results/tables --minimum-effect {params.minimum_effect}"
        " --out {params.out} 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule write_report:
    # one page that needs nothing beside itself
    input:
        script=script("write_report"),
        templates=sorted(
            map(str, Path(ROOT, "src/rlvr_debug/report/templates").glob("*"))
        ),
        tables=TABLES,
        charts=[
            str(Path(ROOT, "src/rlvr_debug/report", name))
            for name in ("answer.yaml", "charts.yaml", "looks.yaml")
        ],
        # of one seed per arm: its viewer shows examples
        rollouts=lambda w: run_files("rollouts.jsonl", first_seeds(last_phase())),
        probes="results/probes.json",
    output:
        "results/report.html",
    log:
        "logs/write_report.log",
    conda:
        "../../envs/train.yaml"
    params:
        code=code(
            "causes/__init__.py",
            "causes/base.py",
            "sampling/alignment.py",
            *(
                f"report/{name}.py"
                for name in ("answer", "charts", "page", "rollouts")
            ),
        ),
        causes=told_causes(),
        settings=as_json(
            {
                **{
                    key: PARAMS[key]
                    for key in ("study", "case", "trainer", "environment")
                },
                **PARAMS["verdicts"],
            }
        ),
    shell:
        "python {input.script} --results results --settings {params.settings:q}"
        " --out {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"
