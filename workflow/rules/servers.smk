"""Servers that jobs share: of the base model, which held-out evaluation asks, and of policies while they are trained."""


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
        TRAIN_PINS
    params:
        code=code("serve", *SERVED),
        model=digest_of(MAIN_MODEL),
        settings=settings_digest(STUDY.serving()),
    shell:
        # exec: it is Snakemake's SIGTERM that ends it, and a shell would keep that to itself
        "exec python {input.script} --study results/study.json --log {log.server} --out {output}"
        " 2> {log[0]}"


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
        TRAIN_PINS
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
