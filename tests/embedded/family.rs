//! Which processes belong to a scratch directory.

use std::fs;
use std::path::Path;

/// The processes that name the directory on their command line (servers, guardian) or work in it (the children of
/// a PostgreSQL), with what they are.
#[cfg(target_os = "linux")]
pub fn of(directory: &Path) -> Vec<(u32, String)> {
    let mut members = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process may end between two lines of this.
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let works_there = fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(directory));
        if works_there || command.contains(&*directory.to_string_lossy()) {
            members.push((pid, command));
        }
    }
    members
}
