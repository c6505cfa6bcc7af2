//! Files for running the server in containers: the Dockerfile, docker-compose.yml and the manifests of
//! deploy/kubernetes. The names in them must exist, and documented guarantees must hold. deploy/image/try runs the
//! image itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// The user of the image, as a number: `runAsNonRoot` rejects names.
const USER: u64 = 10001;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Parses a YAML file with one document.
fn yaml(path: impl AsRef<Path>) -> Value {
    serde_norway::from_str(&read(&path)).unwrap_or_else(|e| panic!("{}: {e}", path.as_ref().display()))
}

/// Returns the strings of an array.
fn texts(array: &Value) -> Vec<&str> {
    array.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Returns the instructions of the Dockerfile, each on one line.
fn instructions() -> Vec<String> {
    let text = read("Dockerfile").replace("\\\n", "");
    text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(str::to_owned).collect()
}

/// Guards against an image that is unreachable, cannot make https requests, or is rejected by a cluster.
#[test]
fn the_image_is_reached_and_runs_without_rights() {
    let all = instructions();
    let last = all.iter().rposition(|line| line.starts_with("FROM ")).expect("a stage");
    let image = &all[last..];
    for wanted in [
        format!("USER {USER}:{USER}"),
        "ENV DORMOUSE_HOST=0.0.0.0".to_owned(),
        "VOLUME /data".to_owned(),
        "EXPOSE 7777 7778".to_owned(),
        "ENTRYPOINT [\"dormouse\"]".to_owned(),
    ] {
        assert!(image.contains(&wanted), "{wanted} in {image:#?}");
    }
    let says = |part: &str| image.iter().any(|line| line.contains(part));
    assert!(says("install -y --no-install-recommends ca-certificates"), "certificates of authorities");
    assert!(
        says("HEALTHCHECK ") && says("CMD [\"dormouse\", \"health\"]"),
        "a health check by dormouse itself"
    );
    assert!(says(&format!("chown {USER}:{USER} /data")), "the volume is the user's");
    // jemalloc is built by make, which the Rust image does not contain.
    let build: Vec<&String> = all[..last].iter().filter(|line| line.starts_with("RUN ")).collect();
    let make = build.iter().position(|line| line.contains("apt-get install") && line.contains(" make "));
    let cargo = build.iter().position(|line| line.contains("cargo build"));
    assert!(make.is_some() && make < cargo, "make is installed before the build: {build:#?}");
    // Copied files exist, and are not excluded by .dockerignore.
    let ignored = read(".dockerignore");
    for line in
        all.iter().filter_map(|line| line.strip_prefix("COPY ")).filter(|line| !line.starts_with("--"))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        for name in &words[..words.len() - 1] {
            assert!(root().join(name).exists(), "COPY {name}: it is not there");
            let top = name.split('/').next().unwrap_or_default();
            let shown = |line: &str| line == format!("!{top}") || line == format!("!{name}");
            assert!(ignored.lines().any(shown), ".dockerignore hides {name}");
        }
    }
}

/// Guards against moved files, ports exposed to the network, and a well-known password.
#[test]
fn compose_runs_what_is_in_the_repository_on_this_machine_alone() {
    let compose = yaml("docker-compose.yml");
    let services = compose["services"].as_object().expect("services");
    let names: Vec<&str> = services.keys().map(String::as_str).collect();
    assert_eq!(
        names.iter().copied().collect::<BTreeSet<_>>(),
        ["dormouse", "grafana", "prometheus", "redis"].into()
    );
    let volumes = compose["volumes"].as_object().expect("volumes");
    let mut published = Vec::new();
    for (name, service) in services {
        for volume in texts(&service["volumes"]) {
            let source = volume.split(':').next().unwrap_or_default();
            match source.strip_prefix("./") {
                Some(path) => {
                    assert!(root().join(path).is_file(), "{name}: {path} is not there");
                    assert!(volume.ends_with(":ro"), "{name} may write to {path}");
                }
                None => assert!(volumes.contains_key(source), "{name}: the volume {source} is not declared"),
            }
        }
        published.extend(texts(&service["ports"]));
        assert_eq!(service["restart"], "unless-stopped", "{name}");
        let depends = &service["depends_on"];
        let on: Vec<&str> = match depends.as_object() {
            Some(table) => table.keys().map(String::as_str).collect(),
            None => texts(depends),
        };
        assert!(on.iter().all(|other| services.contains_key(*other)), "{name} depends on {on:?}");
    }
    published.sort_unstable();
    let ports = ["3000", "7777", "7778", "9090"].map(|port| format!("127.0.0.1:{port}:{port}"));
    assert_eq!(published, ports, "on loopback only");

    let dormouse = &services["dormouse"];
    let account = dormouse["environment"]["DORMOUSE_ACCOUNTS_OPERATOR"].as_str().unwrap_or_default();
    assert!(account.starts_with("${ADMIN_PASSWORD:?"), "an account whose password has no default: {account}");
    assert_eq!(dormouse["environment"]["DORMOUSE_ADMIN_AUTH"], "operator:${ADMIN_PASSWORD}");
    assert_eq!(services["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"], "${ADMIN_PASSWORD}");
    let command = texts(&dormouse["command"]);
    assert_eq!(command.first(), Some(&"-c"));
    let name = command[1].strip_prefix("/etc/dormouse/").expect("a configuration of the image");
    let copied = instructions()
        .iter()
        .any(|line| line.starts_with("COPY ") && line.contains(&format!("config/{name}")));
    assert!(copied, "the image has {name}");
}

/// Returns the path of a repository file in a container of the compose file.
fn mounted<'a>(service: &'a Value, file: &str) -> &'a str {
    let volumes = texts(&service["volumes"]);
    let found = volumes.into_iter().find_map(|volume| volume.strip_prefix(&format!("./{file}:")));
    found.and_then(|rest| rest.strip_suffix(":ro")).unwrap_or_else(|| panic!("{file} is not mounted"))
}

/// Guards against a Prometheus without targets, and a Grafana without the dashboard.
#[test]
fn compose_wires_prometheus_and_grafana_to_the_files_of_monitoring() {
    let compose = yaml("docker-compose.yml");
    let services = &compose["services"];
    let (prometheus, grafana) = (&services["prometheus"], &services["grafana"]);
    // Prometheus finds rules and targets next to its configuration.
    let config = Path::new(mounted(prometheus, "deploy/monitoring/prometheus.yml"));
    assert_eq!(config, Path::new("/etc/prometheus/prometheus.yml"), "where the image reads it");
    let scrape = yaml("deploy/monitoring/prometheus.yml");
    let beside = |name: &Value| config.with_file_name(name.as_str().expect("a name")).display().to_string();
    assert_eq!(mounted(prometheus, "deploy/monitoring/alerts.yml"), beside(&scrape["rule_files"][0]));
    let job = &scrape["scrape_configs"][0];
    assert_eq!(job["job_name"], "dormouse", "the job that the rules name");
    let targets = &job["file_sd_configs"][0]["files"][0];
    assert_eq!(mounted(prometheus, "deploy/compose/targets.yml"), beside(targets));
    let of = |path: &str| yaml(path)[0]["targets"].clone();
    assert_eq!(
        of("deploy/compose/targets.yml"),
        serde_json::json!(["dormouse:7778"]),
        "the server by its name"
    );
    assert_eq!(of("deploy/monitoring/targets.yml"), serde_json::json!(["127.0.0.1:7778"]), "the default");

    let source = mounted(grafana, "deploy/compose/grafana-datasource.yml");
    assert!(source.starts_with("/etc/grafana/provisioning/datasources/"), "{source}");
    assert_eq!(
        yaml("deploy/compose/grafana-datasource.yml")["datasources"][0]["url"],
        "http://prometheus:9090"
    );
    let provider = mounted(grafana, "deploy/compose/grafana-dashboards.yml");
    assert!(provider.starts_with("/etc/grafana/provisioning/dashboards/"), "{provider}");
    let provider = yaml("deploy/compose/grafana-dashboards.yml");
    let dashboard = Path::new(mounted(grafana, "deploy/monitoring/grafana.json"));
    let directory = dashboard.parent().map(|path| path.display().to_string());
    assert_eq!(provider["providers"][0]["options"]["path"].as_str(), directory.as_deref(), "where it looks");
    let uid =
        serde_json::from_str::<Value>(&read("deploy/monitoring/grafana.json")).expect("JSON")["uid"].clone();
    let link = format!("http://127.0.0.1:3000/d/{} ", uid.as_str().expect("a uid"));
    assert!(read("docker-compose.yml").contains(&link), "the address of the dashboard is said: {link}");
}

/// Returns the manifests by file name.
fn manifests() -> BTreeMap<String, Value> {
    let entries = std::fs::read_dir(root().join("deploy/kubernetes")).expect("deploy/kubernetes");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.map(|path| (path.file_name().expect("a name").display().to_string(), yaml(path))).collect()
}

/// Returns the Deployment and the StatefulSet, each with the ConfigMap file that it starts with.
fn workloads(manifests: &BTreeMap<String, Value>) -> [(&'static str, &Value, &'static str); 2] {
    [("deployment.yaml", "redis.toml"), ("statefulset.yaml", "disk.toml")]
        .map(|(name, config)| (name, &manifests[name]["spec"], config))
}

#[test]
fn the_manifests_are_all_there() {
    let manifests = manifests();
    let kinds: BTreeSet<&str> = manifests.values().filter_map(|manifest| manifest["kind"].as_str()).collect();
    let wanted = [
        "ConfigMap",
        "Deployment",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "ScaledObject",
        "Service",
        "ServiceMonitor",
        "StatefulSet",
    ];
    assert_eq!(kinds, wanted.into());
    let page = read("docs/kubernetes.md");
    for name in manifests.keys() {
        assert!(page.contains(&format!("`{name}`")), "docs/kubernetes.md should say what {name} is for");
    }
}

/// Returns a Python with the schemas: tests/run installs it.
fn schemas() -> Option<PathBuf> {
    let own = root().join("target/kubernetes-validate/bin/python");
    [own, PathBuf::from("python3")].into_iter().find(|python| {
        let asked = Command::new(python).args(["-c", "import kubernetes_validate"]).output();
        asked.is_ok_and(|asked| asked.status.success())
    })
}

/// Guards against a key that is misspelt, at the wrong depth, or removed in newer versions: Kubernetes ignores such
/// keys.
#[test]
fn the_manifests_keep_the_schemas() {
    let Some(python) = schemas() else {
        eprintln!("kubernetes-validate is not installed: nothing was checked");
        return;
    };
    let check = |files: &[PathBuf]| {
        let checked = Command::new(&python).arg(root().join("tests/kubernetes/check")).args(files).output();
        let checked = checked.expect("python runs");
        let said = [&checked.stdout[..], &checked.stderr[..]].map(String::from_utf8_lossy).concat();
        (checked.status.success(), said)
    };
    let at = |name: &String| root().join("deploy/kubernetes").join(name);
    let files: Vec<PathBuf> = manifests().keys().map(at).collect();
    let (good, said) = check(&files);
    assert!(good, "{said}");
    // The check itself must reject each of these.
    let dir = TempDir::new().expect("a temporary directory");
    for (name, right, wrong) in [
        ("deployment.yaml", "livenessProbe:", "liveProbe:"),
        ("scaledobject.yaml", "targetValue: \"100\"", "targetValue: 100"),
        ("servicemonitor.yaml", "interval:", "every:"),
    ] {
        let text = read(Path::new("deploy/kubernetes").join(name));
        assert!(text.contains(right), "{right} in {name}");
        let file = dir.path().join(name);
        std::fs::write(&file, text.replace(right, wrong)).expect("written");
        let (good, said) = check(&[file]);
        assert!(!good, "{wrong} should be refused: {said}");
    }
}

/// Returns the port that a named port refers to, or the number itself.
fn port_of(container: &Value, port: &Value) -> Option<u64> {
    let ports = container["ports"].as_array().expect("ports");
    let named = ports.iter().find(|one| Some(&one["name"]) == Some(port))?;
    named["containerPort"].as_u64()
}

/// Guards against pods that a cluster rejects, kills during a Redis outage, or kills before they have stopped.
#[test]
fn pods_run_without_rights_and_stop_in_their_time() {
    let manifests = manifests();
    for (name, spec, file) in workloads(&manifests) {
        let pod = &spec["template"]["spec"];
        let rights = &pod["securityContext"];
        assert_eq!(rights["runAsNonRoot"], true, "{name}");
        for of in ["runAsUser", "runAsGroup", "fsGroup"] {
            assert_eq!(rights[of], USER, "{name}: {of} is the image's");
        }
        assert_eq!(rights["seccompProfile"]["type"], "RuntimeDefault", "{name}");
        let container = &pod["containers"][0];
        let rights = &container["securityContext"];
        assert_eq!(rights["readOnlyRootFilesystem"], true, "{name}");
        assert_eq!(rights["allowPrivilegeEscalation"], false, "{name}");
        assert_eq!(texts(&rights["capabilities"]["drop"]), ["ALL"], "{name}");
        for of in ["cpu", "memory"] {
            assert!(container["resources"]["limits"][of].is_string(), "{name}: a limit of {of}");
            assert!(container["resources"]["requests"][of].is_string(), "{name}: a request of {of}");
        }
        let ports = ["api", "admin"].map(|port| port_of(container, &port.into()));
        assert_eq!(ports, [Some(7777), Some(7778)], "{name}: ports api and admin");
        for (probe, path, port) in [
            ("startupProbe", "/ping", "admin"),
            ("livenessProbe", "/ping", "admin"),
            ("readinessProbe", "/ready", "api"),
        ] {
            let asked = &container[probe]["httpGet"];
            assert_eq!((&asked["path"], &asked["port"]), (&path.into(), &port.into()), "{name}: {probe}");
        }
        let config: toml::Table =
            manifests["configmap.yaml"]["data"][file].as_str().expect("a file").parse().expect("TOML");
        let drain = config["DrainSeconds"].as_integer().expect("seconds");
        assert_eq!(drain, 10, "{name}");
        let grace = pod["terminationGracePeriodSeconds"].as_i64().expect("seconds");
        assert!(grace > drain + 5, "{name}: {grace} s for a drain of {drain} s and a stop of 5 s");
        let ready = &container["readinessProbe"];
        let noticed = ready["periodSeconds"].as_i64().zip(ready["failureThreshold"].as_i64());
        assert!(
            noticed.is_some_and(|(period, times)| period * times < drain),
            "{name}: seen within the drain"
        );
    }
    let replicas = |name: &str| manifests[name]["spec"]["replicas"].as_u64();
    assert_eq!(replicas("statefulset.yaml"), Some(1), "a directory has one server");
    assert!(replicas("deployment.yaml") > Some(1));
}

/// Guards against selectors that match nothing, and unused ports.
#[test]
fn services_and_policies_mean_the_pods() {
    let manifests = manifests();
    let service = &manifests["service.yaml"]["spec"];
    for (name, spec, _) in workloads(&manifests) {
        let (labels, pod) = (&spec["template"]["metadata"]["labels"], &spec["template"]["spec"]);
        let selectors = [
            ("itself", &spec["selector"]["matchLabels"]),
            ("service.yaml", &service["selector"]),
            (
                "poddisruptionbudget.yaml",
                &manifests["poddisruptionbudget.yaml"]["spec"]["selector"]["matchLabels"],
            ),
            ("networkpolicy.yaml", &manifests["networkpolicy.yaml"]["spec"]["podSelector"]["matchLabels"]),
        ];
        for (of, selector) in selectors {
            assert_eq!(selector, labels, "{name} is selected by {of}");
        }
        for port in service["ports"].as_array().expect("ports") {
            let number = port_of(&pod["containers"][0], &port["targetPort"]);
            assert_eq!((&port["name"], port["port"].as_u64()), (&port["targetPort"], number), "{name}");
        }
        let volumes: BTreeSet<&str> = ["volumes"]
            .iter()
            .flat_map(|key| pod[key].as_array().expect("volumes"))
            .chain(
                spec["volumeClaimTemplates"].as_array().into_iter().flatten().map(|claim| &claim["metadata"]),
            )
            .filter_map(|volume| volume["name"].as_str())
            .collect();
        let mounts = pod["containers"][0]["volumeMounts"].as_array().expect("mounts");
        let mounts: BTreeSet<&str> = mounts.iter().filter_map(|mount| mount["name"].as_str()).collect();
        assert_eq!(volumes, mounts, "{name}: volumes and mounts are the same");
    }
    let names: Vec<&Value> =
        service["ports"].as_array().expect("ports").iter().map(|port| &port["name"]).collect();
    assert_eq!(names, ["api", "admin"]);
    let monitor = &manifests["servicemonitor.yaml"];
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], manifests["service.yaml"]["metadata"]["labels"]);
    assert_eq!(monitor["spec"]["endpoints"][0]["port"], "admin");
    assert_eq!(manifests["service.yaml"]["metadata"]["name"], "dormouse", "the job that the alerts name");

    let rules = manifests["networkpolicy.yaml"]["spec"]["ingress"].as_array().expect("rules");
    for rule in rules {
        let admin = rule["ports"].as_array().expect("ports").iter().any(|port| port["port"] == "admin");
        assert_eq!(admin, rule["from"].is_array(), "the admin port, and it alone, is for some: {rule}");
    }
    assert_eq!(rules.len(), 2);
    let scaled = &manifests["scaledobject.yaml"]["spec"]["triggers"][0]["metadata"];
    let url = scaled["url"].as_str().expect("a URL");
    assert!(url.starts_with("http://dormouse.default.svc:7777/api/") && url.ends_with("/size"), "{url}");
    assert_eq!(scaled["valueLocation"], "size", "the field of the reply");
}

/// Guards against a pod that ends with exit code 2 as soon as it starts.
#[test]
fn the_configurations_of_the_manifests_are_taken() {
    let manifests = manifests();
    for (name, spec, file) in workloads(&manifests) {
        let container = &spec["template"]["spec"]["containers"][0];
        assert_eq!(texts(&container["args"]), ["-c", &format!("/etc/dormouse/{file}")], "{name}");
        // As in the pod, except for the paths of files.
        let dir = TempDir::new().expect("a temporary directory");
        let here = |text: &str| {
            let secrets = text.replace("/run/secrets/dormouse", &dir.path().display().to_string());
            secrets.replace("/data/", &format!("{}/", dir.path().display()))
        };
        let config = manifests["configmap.yaml"]["data"][file].as_str().expect("a file");
        std::fs::write(dir.path().join("c.toml"), here(config)).expect("written");
        for secret in ["operator", "redis"] {
            std::fs::write(dir.path().join(secret), "hush\n").expect("written");
        }
        let mut check = Command::new(env!("CARGO_BIN_EXE_dormouse"));
        check.args(["check", "-c"]).arg(dir.path().join("c.toml")).env_clear();
        for variable in container["env"].as_array().expect("variables") {
            let [key, value] = ["name", "value"].map(|of| variable[of].as_str().expect("a text"));
            check.env(key, here(value));
        }
        // The variables that Kubernetes sets for a Service of this name unless enableServiceLinks is off.
        check.env("DORMOUSE_SERVICE_HOST", "10.0.0.1").env("DORMOUSE_PORT", "tcp://10.0.0.1:7777");
        let checked = check.output().expect("the binary runs");
        let said = [&checked.stdout[..], &checked.stderr[..]].map(String::from_utf8_lossy).concat();
        assert!(checked.status.success(), "{name}: {said}");
        for part in ["Host = \"0.0.0.0\"", "AdminHost = \"0.0.0.0\"", "operator = \"(secret)\""] {
            assert!(said.contains(part), "{name}: {part} in\n{said}");
        }
    }
}
