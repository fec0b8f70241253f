//! Where the servers' programs are.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::EmbeddedError;

/// Names a directory with `postgres` and `initdb`.
pub(super) const POSTGRES_VARIABLE: &str = "POSTGRES_BIN_DIR";
/// Names a nats-server.
pub(super) const NATS_VARIABLE: &str = "NATS_SERVER";

/// What to install, for a person who has neither.
const INSTALL: &str = "install it with `apt-get install postgresql nats-server` on Debian or Ubuntu; elsewhere install \
                       PostgreSQL 14 or later with its server programs, and nats-server 2.9 or later";
/// Debian keeps servers' programs here, one directory a version, and not on the path.
const DEBIAN_POSTGRES: &str = "/usr/lib/postgresql";
/// Debian's nats-server is in a directory that an ordinary user's path leaves out.
const SYSTEM_DIRECTORIES: [&str; 3] = ["/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];

/// The directory of PostgreSQL's server programs.
pub(super) fn postgres_directory(named: Option<&Path>) -> Result<PathBuf, EmbeddedError> {
    let complete = |directory: &Path| {
        ["postgres", "initdb"]
            .iter()
            .all(|program| executable(&directory.join(program)).is_some())
    };
    if let Some((source, directory)) = explicit(named, POSTGRES_VARIABLE) {
        return complete(&directory).then_some(directory.clone()).ok_or_else(|| {
            EmbeddedError::MissingBinary {
                program: "postgres",
                searched: directory.display().to_string(),
                advice: format!(
                    "{source} must name a directory that holds the programs `postgres` and `initdb`"
                ),
            }
        });
    }
    path_directories()
        .into_iter()
        .chain(versions_below(Path::new(DEBIAN_POSTGRES)))
        .find(|directory| complete(directory))
        .or_else(|| pg_config_directory().filter(|directory| complete(directory)))
        .and_then(|directory| std::path::absolute(directory).ok())
        .ok_or_else(|| EmbeddedError::MissingBinary {
            program: "postgres",
            searched: format!("PATH, {DEBIAN_POSTGRES}/*/bin, pg_config --bindir"),
            advice: format!("{INSTALL}, or name the directory of its programs in {POSTGRES_VARIABLE}"),
        })
}

/// The nats-server program.
pub(super) fn nats_server(named: Option<&Path>) -> Result<PathBuf, EmbeddedError> {
    if let Some((source, path)) = explicit(named, NATS_VARIABLE) {
        return executable(&path).ok_or_else(|| EmbeddedError::MissingBinary {
            program: "nats-server",
            searched: path.display().to_string(),
            advice: format!("{source} must name the program itself"),
        });
    }
    let in_system = || {
        SYSTEM_DIRECTORIES
            .iter()
            .find_map(|directory| executable(&Path::new(directory).join("nats-server")))
    };
    on_path("nats-server")
        .or_else(in_system)
        .ok_or_else(|| EmbeddedError::MissingBinary {
            program: "nats-server",
            searched: format!("PATH, {}", SYSTEM_DIRECTORIES.join(", ")),
            advice: format!("{INSTALL}, or name the program in {NATS_VARIABLE}"),
        })
}

/// A program of that name on `PATH`.
pub(super) fn on_path(program: &str) -> Option<PathBuf> {
    path_directories()
        .iter()
        .find_map(|directory| executable(&directory.join(program)))
}

/// The path itself, made absolute, if it is a file that may be executed.
pub(super) fn executable(path: &Path) -> Option<PathBuf> {
    let metadata = fs::metadata(path).ok()?;
    let runs = metadata.is_file() && metadata.permissions().mode() & 0o111 != 0;
    // The program is started in another working directory.
    runs.then(|| std::path::absolute(path).ok()).flatten()
}

/// What an option, else a variable, names, and a word for which of them it was. An empty variable counts as
/// unset.
fn explicit(named: Option<&Path>, variable: &str) -> Option<(String, PathBuf)> {
    let by_option = named.map(|path| ("the option".to_owned(), path.to_owned()));
    let by_variable = || {
        let value = env::var_os(variable).filter(|value| !value.is_empty())?;
        Some((format!("the variable {variable}"), PathBuf::from(value)))
    };
    by_option.or_else(by_variable).map(|(source, path)| {
        let absolute = std::path::absolute(&path).unwrap_or(path);
        (source, absolute)
    })
}

fn path_directories() -> Vec<PathBuf> {
    env::var_os("PATH")
        .map(|path| env::split_paths(&path).collect())
        .unwrap_or_default()
}

/// `*/bin` below a directory of versions, the newest first.
fn versions_below(directory: &Path) -> Vec<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    versions.into_iter().map(|(_, path)| path).collect()
}

fn pg_config_directory() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_comes_first_by_number_not_by_text() {
        let directory = tempfile::tempdir().unwrap();
        for version in ["9", "15", "16", "common"] {
            fs::create_dir(directory.path().join(version)).unwrap();
        }
        let found = versions_below(directory.path());
        let expected: Vec<PathBuf> = ["16/bin", "15/bin", "9/bin"]
            .iter()
            .map(|version| directory.path().join(version))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_an_option_names_is_taken_or_refused_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let error = postgres_directory(Some(directory.path()))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("the option must name a directory that holds the programs"),
            "{error}"
        );
        let error = nats_server(Some(&directory.path().join("nats-server")))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("the option must name the program itself"),
            "{error}"
        );
    }
}
