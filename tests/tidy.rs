//! The rules of the house that a machine can check. Whoever adds a file finds the lists right here; to widen one is
//! a decision, with its reason beside the entry.
//!
//! A place is a prefix of a path: `src/supervisor` is `src/supervisor.rs` and all of `src/supervisor/`. What stands
//! below the first `#[cfg(test)]` of a file is a test, and free.

#![allow(
    clippy::unwrap_used,
    reason = "a panic is how a test fails, in its helpers too"
)]

use std::fs;
use std::path::{Path, PathBuf};

/// Longer files are more than one concept.
const LONGEST_FILE: usize = 500;

/// Where Rust code is.
const ROOTS: [&str; 4] = ["src", "tests", "benches", "examples"];

/// A piece of code that only some places may hold.
struct Rule {
    what: &'static str,
    /// Found anywhere in a line of code, if no letter, digit or `_` stands before it.
    marks: &'static [&'static str],
    /// Where the rule holds.
    within: &'static [&'static str],
    /// Where it does not, each with a reason.
    except: &'static [&'static str],
    why: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        what: "actix",
        marks: &["actix::", "actix_rt::", "use actix"],
        within: &["src", "examples"],
        except: &["src/supervisor"],
        why: "the actor is a control shell; everything else is plain async Rust that is tested without it",
    },
    Rule {
        what: "the NATS client",
        marks: &["async_nats"],
        within: &["src"],
        except: &["src/broker/nats"],
        why: "the broker is a seam: other brokers are to come behind it",
    },
    Rule {
        what: "a spawned task",
        marks: &[
            "tokio::spawn(",
            "task::spawn(",
            "spawn_local(",
            "Handle::current()",
            "JoinSet",
        ],
        within: &["src"],
        except: &[
            "src/supervisor",           // launches the loops and joins them
            "src/store/transaction.rs", // BEGIN, which must not be dropped half-way
            "src/cli/demo",             // plays several producers at once, and joins them
            "src/inbox/consumer.rs",    // the lanes: each ends when told to, and its panic is passed on
            "src/outbox/task.rs", // the relay's own tasks: each ends when told to, and its panic is passed on
        ],
        why: "work that nobody joins has panics that nobody sees, and no shutdown",
    },
    Rule {
        what: "a thread",
        marks: &["thread::spawn(", "thread::Builder", "thread::scope("],
        within: &["src"],
        except: &[
            "src/supervisor",         // the tree's own thread, and the watchdog of blocked ones
            "src/embedded/launch.rs", // lives as long as the process, for the death signal
        ],
        why: "threads are the supervisor's",
    },
    Rule {
        what: "SQL",
        marks: &[
            "sqlx::query",
            "query(",
            "query_as(",
            "query_scalar(",
            "raw_sql(",
            "QueryBuilder",
            "AssertSqlSafe(",
        ],
        within: &["src"],
        except: &[
            "src/store",
            "src/outbox",
            "src/inbox",
            "src/dead_letter",
            "src/pruner",
            "src/cli/demo",             // the demonstration's own business
            "src/embedded/postgres.rs", // asks a private server whether it answers, and creates databases
        ],
        why: "the statements on a table stand in one place",
    },
    Rule {
        what: "the start of a transaction",
        marks: &[
            "Transaction::begin",
            ".pool().begin",
            "pool.begin",
            "connection.begin",
        ],
        within: &["src"],
        except: &["src/store"],
        why: "a dropped begin() poisons the pool: use store::Store::begin",
    },
    Rule {
        what: "the outbox",
        marks: &["crate::outbox"],
        within: &["src/inbox", "src/store", "src/broker", "src/message"],
        except: &[],
        why: "the two boxes don't know each other, and what lies below knows neither",
    },
    Rule {
        what: "the inbox",
        marks: &["crate::inbox"],
        within: &["src/outbox", "src/store", "src/broker", "src/message"],
        except: &[],
        why: "the two boxes don't know each other, and what lies below knows neither",
    },
    Rule {
        what: "the command line",
        marks: &["crate::cli", "clap::", "indicatif::", "comfy_table::"],
        within: &["src"],
        except: &["src/cli", "src/main.rs"],
        why: "who uses the library compiles no command line",
    },
    Rule {
        what: "the wall clock",
        marks: &["SystemTime::now(", "OffsetDateTime::now_utc(", "now_local("],
        within: &[
            "src/outbox",
            "src/inbox",
            "src/pruner",
            "src/supervisor",
            "src/store",
        ],
        except: &[],
        why: "durations are measured by Instant or the database's clock",
    },
];

#[test]
fn code_stands_where_it_belongs() {
    let mut broken = Vec::new();
    for file in rust_files() {
        for (number, line) in product_code(&file.text) {
            for rule in RULES {
                let here = lies_in(&file.path, rule.within) && !lies_in(&file.path, rule.except);
                if here && rule.marks.iter().any(|mark| holds(line, mark)) {
                    broken.push(format!(
                        "{}:{number}: {} here, but {}",
                        file.path, rule.what, rule.why
                    ));
                }
            }
        }
    }
    complain("tests/tidy.rs says who may; the list is at its top", &broken);
}

#[test]
fn exceptions_are_of_files_that_may_exist() {
    // A list that names what is gone would hide what comes later under that name. Parts that are still to come are
    // named by their module.
    let named = RULES
        .iter()
        .flat_map(|rule| rule.except)
        .filter(|place| place.ends_with(".rs"));
    let gone: Vec<String> = named
        .filter(|place| !root().join(place).is_file())
        .map(|place| (*place).to_owned())
        .collect();
    complain("exceptions in tests/tidy.rs for files that are not there", &gone);
}

#[test]
fn files_are_short() {
    let long: Vec<String> = rust_files()
        .into_iter()
        .map(|file| (file.text.lines().count(), file.path))
        .filter(|(lines, _)| *lines > LONGEST_FILE)
        .map(|(lines, path)| format!("{path}: {lines} lines"))
        .collect();
    complain(
        &format!("files of more than {LONGEST_FILE} lines hold more than one concept"),
        &long,
    );
}

#[test]
fn every_allowed_lint_has_its_reason() {
    let mut bare = Vec::new();
    for file in rust_files() {
        for mark in ["#[allow(", "#![allow(", "#[expect(", "#![expect("] {
            for (start, _) in file.text.match_indices(mark) {
                let line = &file.text[file.text[..start].rfind('\n').map_or(0, |end| end + 1)..start];
                let attribute = file.text[start..].split(")]").next().unwrap();
                // Within a comment or a string it is about such an attribute.
                if line.trim().is_empty() && !attribute.contains("reason = ") {
                    bare.push(format!("{}: {}", file.path, attribute.lines().next().unwrap()));
                }
            }
        }
    }
    complain("lints allowed without a reason = \"…\"", &bare);
}

#[test]
fn tests_wait_for_conditions() {
    let mut sleeps = Vec::new();
    for file in rust_files()
        .into_iter()
        .filter(|file| file.path.starts_with("tests/") && file.path != "tests/tidy.rs")
    {
        let mut above = "";
        for (number, line) in (1..).zip(file.text.lines()) {
            // With its reason on the line or above it: a pause may be what a test is about.
            let has_reason = line.contains("// ") || above.trim_start().starts_with("// ");
            if holds(line, "sleep(") && !has_reason {
                sleeps.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
            above = line;
        }
    }
    complain(
        "use testing::wait_until, or say in a comment at the line or above it why it must be a pause",
        &sleeps,
    );
}

struct RustFile {
    /// From the root, with `/`.
    path: String,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files() -> Vec<RustFile> {
    let mut folders: Vec<PathBuf> = ROOTS.iter().map(|name| root().join(name)).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let relative = path
                    .strip_prefix(root())
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .replace('\\', "/");
                files.push(RustFile {
                    path: relative,
                    text: fs::read_to_string(path).unwrap(),
                });
            }
        }
    }
    assert!(files.len() > 5, "the rules are checked on nothing");
    files.sort_by(|one, other| one.path.cmp(&other.path));
    files
}

/// The lines that are code, with their numbers.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// The same, up to a file's own tests.
fn product_code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    code(text).take_while(|(_, line)| line.trim_start() != "#[cfg(test)]")
}

/// Whether a line holds a mark that is not the end of a longer word.
fn holds(line: &str, mark: &str) -> bool {
    line.match_indices(mark).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        mark.starts_with('.') || !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

fn lies_in(path: &str, places: &[&str]) -> bool {
    places.iter().any(|place| {
        let rest = path.strip_prefix(place);
        rest.is_some_and(|rest| rest.is_empty() || rest == ".rs" || rest.starts_with('/'))
    })
}

fn complain(what: &str, list: &[String]) {
    assert!(list.is_empty(), "{what}:\n  {}\n", list.join("\n  "));
}

#[test]
fn the_rules_themselves_catch_what_they_are_for() {
    assert!(lies_in("src/supervisor.rs", &["src/supervisor"]));
    assert!(lies_in("src/supervisor/tree.rs", &["src/supervisor"]));
    assert!(lies_in("src/embedded/launch.rs", &["src/embedded/launch.rs"]));
    assert!(!lies_in("src/supervisor_like.rs", &["src/supervisor"]));
    assert!(holds("    let rows = sqlx::query(SQL)", "sqlx::query"));
    assert!(holds("    tokio::spawn(work)", "tokio::spawn("));
    assert!(!holds("    let info = my_query(1)", "query("));
    let text = "use a;\n// use actix\n#[cfg(test)]\nmod tests;\n";
    assert_eq!(
        product_code(text).map(|(number, _)| number).collect::<Vec<_>>(),
        [1]
    );
}
