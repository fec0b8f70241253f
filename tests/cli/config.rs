//! `twinbox config`: what is in force, and what is wrong with it.

use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;

use crate::world::{Ended, alone, twinbox};

/// `config` in a folder with this twinbox.toml, with these variables.
fn config(toml: &str, variables: &[(&str, &str)], args: &[&str]) -> Ended {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("twinbox.toml"), toml).unwrap();
    twinbox(&folder)
        .arg("config")
        .args(args)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap()
        .into()
}

#[test]
fn secrets_are_masked_wherever_they_come_from() {
    let toml = "[nats]\nuser = \"app\"\npassword = \"hush-file\"\n[database]\ndirect_url = \"postgres://a:hush-direct@h/d\"";
    let variables = [
        (
            "DATABASE_URL",
            "postgres://app:hush-variable@db/orders?sslpassword=hush-query",
        ),
        (
            "NATS_URL",
            "nats://hush-token@one:4222,nats://u:hush-nats@two:4222",
        ),
    ];
    for args in [&[][..], &["--json"], &["--set", "nats.password=hush-flag"]] {
        let shown = config(toml, &variables, args).ok();
        assert!(!shown.contains("hush"), "{shown}");
        for visible in ["postgres://app:***@db/orders", "two:4222", "app"] {
            assert!(shown.contains(visible), "{shown}");
        }
    }
    let token = config("[nats]\ntoken = \"hush\"", &[], &["--json"]).json();
    assert_eq!(token["nats"]["token"], "***");
}

#[test]
fn every_setting_is_shown_and_the_toml_is_a_valid_file() {
    let toml = "[[streams]]\nname = \"S\"\nsubjects = [\"s.>\"]\n[[consumers]]\nname = \"c\"\nstream = \"S\"\n\
                [[consumers.handlers]]\nsql = \"SELECT :id\"";
    let shown = config(toml, &[], &[]).ok();
    let json = config(toml, &[], &["--json"]).json();
    let mut keys = Vec::new();
    leaves(&json, &mut keys);
    assert!(keys.len() > 60, "{keys:?}");
    for key in &keys {
        let in_toml = shown
            .lines()
            .any(|line| line.starts_with(&format!("{key} = ")) || line == format!("# {key} is not set"));
        assert!(in_toml, "{key} is missing in\n{shown}");
    }
    assert_eq!(
        config(&shown, &[], &["--json"]).json(),
        json,
        "read again it is the same"
    );
}

fn leaves(value: &Value, keys: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::Object(_) => leaves(value, keys),
                    Value::Array(items) if items.iter().any(Value::is_object) => {
                        items.iter().for_each(|item| leaves(item, keys));
                    }
                    _ => keys.push(key.clone()),
                }
            }
        }
        other => panic!("{other}"),
    }
}

#[test]
fn layers_go_over_one_another() {
    let shown = config(
        "[relay]\npage_rows = 1\nwindow = 2\nname = \"file\"\n[database]\nurl = \"postgres://file/d\"",
        &[
            ("DATABASE_URL", "postgres://variable/d"),
            ("TWINBOX_RELAY__WINDOW", "3"),
            ("TWINBOX_RELAY__NAME", "variable"),
            ("TWINBOX_RUN__ROLES", "relay,pruner"),
            // Set and empty, as some tools say "not set".
            ("NATS_URL", ""),
        ],
        &["--json", "--set", "relay.name=flag", "--schema", "other"],
    )
    .json();
    assert_eq!(shown["relay"]["page_rows"], 1);
    assert_eq!(shown["relay"]["window"], 3);
    assert_eq!(shown["relay"]["name"], "flag");
    assert_eq!(shown["database"]["url"], "postgres://variable/d");
    assert_eq!(shown["database"]["schema"], "other");
    assert_eq!(shown["nats"]["url"], "nats://localhost:4222");
    assert_eq!(shown["run"]["roles"], serde_json::json!(["relay", "pruner"]));
}

#[test]
fn what_is_wrong_is_named_on_one_line_with_status_78() {
    for (toml, variables, args, told) in [
        (
            "[relay]\npage_row = 1",
            vec![],
            vec![],
            "twinbox.toml: there is no setting relay.page_row;",
        ),
        (
            "[relay]\npage_rows = \"x\"",
            vec![],
            vec![],
            "relay.page_rows` in twinbox.toml",
        ),
        (
            "[relay]\npage_rows = 0",
            vec![],
            vec![],
            "relay.page_rows: must be between 1 and 50000",
        ),
        (
            "relay",
            vec![],
            vec![],
            "twinbox.toml: TOML parse error at line 1",
        ),
        (
            "",
            vec![("TWINBOX_RELAY__PAGE_ROW", "1")],
            vec![],
            "variable TWINBOX_RELAY__PAGE_ROW: there is no setting",
        ),
        ("", vec![("TWINBOX_RELAY__LEASE", "soon")], vec![], "relay.lease"),
        (
            "",
            vec![("DATABASE_URL", "mysql://h/d")],
            vec![],
            "database.url: must look like postgres://",
        ),
        (
            "",
            vec![],
            vec!["--set", "relay.page_row=1"],
            "flags: there is no setting relay.page_row;",
        ),
        (
            "",
            vec![],
            vec!["--set", "run.drain_deadline=2days"],
            "run.drain_deadline: must be at most 24h",
        ),
        ("", vec![], vec!["--set", "run.roles=relais"], "relais"),
        ("", vec![], vec!["--schema", "a b"], "database.schema"),
        (
            "",
            vec![],
            vec!["--config", "none.toml"],
            "none.toml: No such file",
        ),
        (
            "[[consumers]]\nname = \"a\"\nack_wait = \"5s\"",
            vec![],
            vec![],
            "consumers[0].stream: is empty: name the stream to read; consumers[0].ack_wait",
        ),
    ] {
        let error = config(toml, &variables, &args).error(78);
        assert!(error.contains(told), "should tell {told:?}: {error}");
    }
}

#[test]
fn it_needs_no_file_and_no_server() {
    assert!(alone(&["config"]).ok().contains("[database]"));
}
