//! `twinbox config`

use super::{CommandError, Output, SettingsArgs};
use clap::Args;
use serde_json::Value;
use std::process::ExitCode;
const CONFIG_EXAMPLES: &str = "\
Examples:
  twinbox config > twinbox.toml            a file to begin with
  twinbox config --set relay.page_rows=500 what a flag changes";

/// Print the settings that are in force, secrets masked.
///
/// Written as TOML, so that it can be the beginning of a twinbox.toml; what is not set stands in a comment. Needs no server.
#[derive(Args, Debug)]
#[command(after_long_help = CONFIG_EXAMPLES)]
pub(super) struct Config {
    #[command(flatten)]
    output: Output,
}

impl Config {
    pub(super) fn run(&self, args: &SettingsArgs) -> Result<ExitCode, CommandError> {
        let settings = args.load()?;
        let toml = toml::to_string_pretty(&settings)?;
        let json = serde_json::to_value(&settings)?;
        self.output.write(&settings, || with_unset(&toml, &json))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// TOML knows no null: keys without a value are added as comments, at the head of their section.
fn with_unset(toml: &str, settings: &Value) -> String {
    let mut text = String::with_capacity(toml.len() * 2);
    let mut seen: Vec<&str> = Vec::new();
    for line in toml.lines() {
        text.push_str(line);
        text.push('\n');
        let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) else {
            continue;
        };
        let section = section.trim_start_matches('[').trim_end_matches(']');
        seen.push(section);
        if let Some(Value::Object(values)) = find(settings, section, &seen) {
            for (key, _) in values.iter().filter(|(_, value)| value.is_null()) {
                text.push_str(&format!("# {key} is not set\n"));
            }
        }
    }
    text
}

/// The section's values: of a list, those of the element that was seen last.
fn find<'a>(settings: &'a Value, section: &str, seen: &[&str]) -> Option<&'a Value> {
    let mut found = settings;
    let mut path = String::new();
    let mut begins_at = 0;
    for name in section.split('.') {
        path.push_str(if path.is_empty() { "" } else { "." });
        path.push_str(name);
        found = found.get(name)?;
        if let Value::Array(items) = found {
            // Of a list within a list, only those since the outer element began.
            let heads = seen[begins_at..].iter().filter(|head| **head == path).count();
            begins_at += seen[begins_at..].iter().rposition(|head| **head == path)?;
            found = items.get(heads.checked_sub(1)?)?;
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::with_unset;
    use serde_json::json;

    #[test]
    fn what_is_not_set_stands_in_its_section() {
        let settings = json!({
            "nats": {"url": "n", "token": null},
            "list": [
                {"name": "a", "limit": null, "inner": [{"x": 1, "y": null}, {"x": 2, "y": 3}]},
                {"name": "b", "limit": 1, "inner": [{"x": 4, "y": null}]}
            ]
        });
        let toml = "[nats]\nurl = \"n\"\n[[list]]\nname = \"a\"\n[[list.inner]]\nx = 1\n[[list.inner]]\nx = 2\ny = 3\n\
                    [[list]]\nname = \"b\"\nlimit = 1\n[[list.inner]]\nx = 4\n";
        let wanted = "[nats]\n# token is not set\nurl = \"n\"\n[[list]]\n# limit is not set\nname = \"a\"\n\
                      [[list.inner]]\n# y is not set\nx = 1\n[[list.inner]]\nx = 2\ny = 3\n[[list]]\nname = \"b\"\n\
                      limit = 1\n[[list.inner]]\n# y is not set\nx = 4\n";
        assert_eq!(with_unset(toml, &settings), wanted);
    }
}
