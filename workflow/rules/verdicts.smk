"""Tables, verdicts, charts and the report: what people read."""

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
    decide_look,
    write_tables,
    draw_charts,
    write_report,


checkpoint decide_look:
    # who runs next, after the runs that the look before chose? Of the sequential design, and where phases are gated
    input:
        script=script("decide_look"),
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
        "../../envs/train.yaml"
    params:
        code=code("decide_look", *CAUSES, *SETTINGS),
        settings=settings_digest(
            STUDY.runs, STUDY.phases, PARAMS.phases, STUDY.judged_by
        ),
        before=lambda w, input: f"--before {input.before}" if input.before else "",
    shell:
        "python {input.script} --study results/study.json {params.before} --out {output}"
        " 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule write_tables:
    input:
        script=script("write_tables"),
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
        "../../envs/train.yaml"
    params:
        code=code("write_tables", *CAUSES, *SETTINGS),
        settings=settings_digest(
            STUDY.runs, STUDY.phases, STUDY.unmapped, STUDY.judged_by
        ),
        look=lambda w, input: f"--look {input.look}" if input.look else "",
    shell:
        "python {input.script} --study results/study.json {params.look}"
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
        "../../envs/train.yaml"
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
        "../../envs/train.yaml"
    params:
        code=code("write_report", *CAUSES),
        settings=settings_digest(STUDY.judged_by),
    shell:
        "python {input.script} --study results/study.json"
        " --out {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"
