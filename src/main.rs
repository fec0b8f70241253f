//! The `twinbox` command: the daemon beside a service in any language, and the tools around it.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
