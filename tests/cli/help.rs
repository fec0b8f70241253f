//! What a person sees who asks for help, or mistypes.

use crate::world::alone;

const COMMANDS: [&[&str]; 14] = [
    &[],
    &["migrate"],
    &["run"],
    &["dev"],
    &["demo"],
    &["enqueue"],
    &["status"],
    &["prune"],
    &["dead"],
    &["dead", "list"],
    &["dead", "show"],
    &["dead", "requeue"],
    &["dead", "discard"],
    &["config"],
];

#[test]
fn every_command_explains_itself() {
    for command in COMMANDS {
        let help = alone(&[command, &["--help"]].concat()).ok();
        assert!(help.contains("Usage: twinbox"), "{help}");
        assert!(help.lines().count() > 10, "{help}");
        // Leaves and the whole have an example; `dead` lists commands that have.
        if command != ["dead"] {
            assert!(help.contains("Examples:"), "{command:?} has no example:\n{help}");
        }
        let width = help.lines().map(|line| line.chars().count()).max();
        assert!(width <= Some(110), "{width:?}:\n{help}");
    }
}

#[test]
fn what_is_mistyped_is_told_with_status_2() {
    for (args, told) in [
        (vec!["runn"], "run"),
        (vec!["run", "--role", "relay"], "--roles"),
        (vec!["run", "--roles", "relais"], "relay"),
        (vec!["config", "--set", "relay.page_rows"], "KEY=VALUE"),
        (vec!["demo", "--orders", "0"], "1..=1000000"),
        (vec!["enqueue", "a", "b", "--id", "7"], "--id"),
        (vec!["enqueue", "a", "b", "--header", "x"], "NAME=VALUE"),
        (vec!["dead", "requeue"], "--all"),
        (vec!["dead", "discard", "7", "--all"], "--all"),
    ] {
        let ended = alone(&args);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(told), "{args:?}: {}", ended.stderr);
        assert!(ended.stdout.is_empty());
    }
}

#[test]
fn the_version_is_that_of_the_package() {
    assert_eq!(
        alone(&["--version"]).ok().trim(),
        format!("twinbox {}", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn a_pipe_and_no_color_get_no_colours() {
    for args in [&["--help"][..], &["config"], &["config", "--json"]] {
        assert!(!alone(args).ok().contains('\u{1b}'));
    }
    let error = alone(&["runn"]);
    assert!(!error.stderr.contains('\u{1b}'), "{error:?}");
}
