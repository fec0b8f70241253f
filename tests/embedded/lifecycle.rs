use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sqlx::{Connection, PgConnection};
use twinbox::embedded::{
    EmbeddedError, NatsOptions, PostgresOptions, PrivateNats, PrivatePostgres, PrivateServers,
};
use twinbox::testing::{self, wait_until};

const SOON: Duration = Duration::from_secs(20);

async fn query(url: &str, sql: &'static str) -> Result<String, sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    let value = sqlx::query_scalar(sql).fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok(value)
}

async fn execute(url: &str, sql: &'static str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// async-nats does not take user and password from a URL.
async fn connect(url: &str) -> Result<async_nats::Client, async_nats::ConnectError> {
    let parsed = url::Url::parse(url).unwrap();
    let options = match parsed.password() {
        Some(password) => async_nats::ConnectOptions::with_user_and_password(
            parsed.username().to_owned(),
            password.to_owned(),
        ),
        None => async_nats::ConnectOptions::new(),
    };
    options.connect(url).await
}

async fn jetstream(url: &str) -> async_nats::jetstream::Context {
    async_nats::jetstream::new(connect(url).await.unwrap())
}

async fn make_stream(
    context: &async_nats::jetstream::Context,
    name: &str,
) -> Result<(), async_nats::jetstream::context::CreateStreamError> {
    let config = async_nats::jetstream::stream::Config {
        name: name.to_owned(),
        subjects: vec![format!("{name}.>")],
        ..Default::default()
    };
    context.create_stream(config).await.map(drop)
}

#[tokio::test]
async fn both_servers_answer_to_their_urls_only() {
    let servers = testing::servers().await;
    assert_eq!(
        query(&servers.postgres.url(), "SELECT 'yes'").await.unwrap(),
        "yes"
    );
    let context = jetstream(&servers.nats.url()).await;
    make_stream(&context, &testing::unique("answers")).await.unwrap();

    let open_postgres = format!(
        "postgres://app@127.0.0.1:{}/postgres?sslmode=disable",
        servers.postgres.port()
    );
    assert!(
        query(&open_postgres, "SELECT 'yes'").await.is_err(),
        "PostgreSQL must ask for a password"
    );
}

#[tokio::test]
async fn fresh_databases_are_empty_and_apart() {
    let (one, other) = tokio::join!(testing::fresh_database(), testing::fresh_database());
    execute(&one, "CREATE TABLE orders (id int)").await;
    let seen = "SELECT count(*)::text FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(query(&one, seen).await.unwrap(), "1");
    assert_eq!(query(&other, seen).await.unwrap(), "0");

    let servers = testing::servers().await;
    let error = servers.postgres.create_database("no\"good").await.unwrap_err();
    assert!(matches!(error, EmbeddedError::Invalid { .. }), "{error}");
}

#[tokio::test]
async fn postgres_comes_back_with_port_and_data_after_every_kind_of_end() {
    let options = PostgresOptions::new().fast().setting("work_mem", "3MB");
    let mut postgres = PrivatePostgres::start(options).await.unwrap();
    let url = postgres.create_database("kept").await.unwrap();
    assert_eq!(query(&url, "SHOW work_mem").await.unwrap(), "3MB");
    execute(&url, "CREATE TABLE seen (what text)").await;

    for end in ["kill", "stop_immediately", "stop", "restart"] {
        execute(&url, "INSERT INTO seen VALUES ('once more')").await;
        let first_pid = postgres.pid();
        match end {
            "kill" => postgres.kill().await.unwrap(),
            "stop_immediately" => postgres.stop_immediately().await.unwrap(),
            "stop" => postgres.stop().await.unwrap(),
            _ => {}
        }
        if end != "restart" {
            assert_eq!(postgres.pid(), None);
            assert!(query(&url, "SELECT 'yes'").await.is_err(), "answers after {end}");
        }
        let started = Instant::now();
        postgres.restart().await.unwrap();
        eprintln!("postgres answers {:?} after {end}", started.elapsed());
        assert_ne!(postgres.pid(), first_pid);
    }
    assert_eq!(query(&url, "SELECT count(*)::text FROM seen").await.unwrap(), "4");
    assert!(
        postgres
            .log_tail(5)
            .contains("database system is ready to accept connections")
    );
}

#[tokio::test]
async fn nats_comes_back_with_port_and_store_after_every_kind_of_end() {
    let mut nats = PrivateNats::start(NatsOptions::new()).await.unwrap();
    let name = "KEPT";
    make_stream(&jetstream(&nats.url()).await, name).await.unwrap();

    for (round, end) in (1..).zip(["kill", "stop", "restart"]) {
        let context = jetstream(&nats.url()).await;
        context
            .publish(format!("{name}.more"), "once more".into())
            .await
            .unwrap()
            .await
            .unwrap();
        match end {
            "kill" => nats.kill().await.unwrap(),
            "stop" => nats.stop().await.unwrap(),
            _ => {}
        }
        let started = Instant::now();
        nats.restart().await.unwrap();
        eprintln!("nats-server answers {:?} after {end}", started.elapsed());
        let mut stream = jetstream(&nats.url()).await.get_stream(name).await.unwrap();
        assert_eq!(stream.info().await.unwrap().state.messages, round, "after {end}");
    }
    assert!(nats.store_directory().join("jetstream").is_dir());
}

#[tokio::test]
async fn nats_asks_for_a_password_unless_told_otherwise() {
    let nats = PrivateNats::start(NatsOptions::new()).await.unwrap();
    connect(&nats.url()).await.unwrap();
    let error = connect(&format!("nats://127.0.0.1:{}", nats.port()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), async_nats::ConnectErrorKind::AuthorizationViolation);
}

#[tokio::test]
async fn nats_takes_limits_and_configuration() {
    let options = NatsOptions::new()
        .max_payload(2048)
        .configuration("jetstream { max_file_store: 10MB }");
    let nats = PrivateNats::start(options).await.unwrap();
    let client = connect(&nats.url()).await.unwrap();
    assert_eq!(client.server_info().max_payload, 2048);
    let made = make_stream(&async_nats::jetstream::new(client), "MADE").await;
    made.expect("JetStream is on with a configuration block of the user's");
    assert!(
        nats.store_directory().join("jetstream").is_dir(),
        "the store stays in the scratch directory"
    );

    let nats = PrivateNats::start(NatsOptions::new().without_jetstream().anonymous())
        .await
        .unwrap();
    let client = connect(&nats.url()).await.unwrap();
    assert!(
        make_stream(&async_nats::jetstream::new(client), "REFUSED")
            .await
            .is_err()
    );

    let broken = PrivateNats::start(NatsOptions::new().configuration("max_payload: {"))
        .await
        .unwrap_err();
    assert!(
        broken.to_string().contains("Parse error"),
        "the log's end tells: {broken}"
    );
}

#[tokio::test]
async fn four_pairs_start_in_parallel_and_go() {
    let start = || PrivateServers::start(PostgresOptions::new().fast(), NatsOptions::new());
    let all: Vec<_> = join_all((0..4).map(|_| start()))
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let mut directories: Vec<PathBuf> = Vec::new();
    for servers in &all {
        assert_eq!(
            query(&servers.postgres.url(), "SELECT 'yes'").await.unwrap(),
            "yes"
        );
        make_stream(&jetstream(&servers.nats.url()).await, "THERE")
            .await
            .unwrap();
        directories.push(servers.postgres.directory().to_owned());
        directories.push(servers.nats.directory().to_owned());
    }
    assert!(directories.iter().all(|directory| directory.is_dir()));
    drop(all);
    for directory in directories {
        assert!(
            !directory.exists(),
            "{} is still there after the drop",
            directory.display()
        );
        #[cfg(target_os = "linux")]
        wait_until("the directory's processes are gone", SOON, || async {
            let family = super::family::of(&directory);
            if family.is_empty() {
                Ok(())
            } else {
                Err(format!("{family:?}"))
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_killed_postgres_leaves_no_shared_memory() {
    let mut postgres = PrivatePostgres::start(PostgresOptions::new().fast())
        .await
        .unwrap();
    let lock_file = std::fs::read_to_string(postgres.data_directory().join("postmaster.pid")).unwrap();
    let segment = lock_file
        .lines()
        .nth(6)
        .and_then(|line| line.split_whitespace().nth(1))
        .unwrap()
        .to_owned();
    let is_there = || {
        let list = std::process::Command::new("ipcs").arg("-m").output().unwrap();
        String::from_utf8(list.stdout)
            .unwrap()
            .lines()
            .any(|line| line.split_whitespace().nth(1) == Some(&segment))
    };
    assert!(is_there());
    postgres.kill().await.unwrap();
    drop(postgres);
    wait_until("the segment is gone", SOON, || async { !is_there() }).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn postgres_never_runs_as_root_nor_with_its_groups() {
    let pid = testing::servers().await.postgres.pid().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].split_whitespace().collect::<Vec<_>>()
    };
    assert_ne!(field("Uid:")[0], "0");
    if rustix::process::geteuid().is_root() {
        assert!(field("Groups:").is_empty(), "{:?}", field("Groups:"));
    }
}

#[tokio::test]
async fn a_start_that_fails_tells_why_and_leaves_nothing() {
    let error = PrivatePostgres::start(PostgresOptions::new().setting("no_such_setting", "1"))
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("unrecognized configuration parameter \"no_such_setting\""),
        "{error}"
    );

    let error = PrivateNats::start(NatsOptions::new().ready_within(Duration::ZERO))
        .await
        .unwrap_err();
    assert!(matches!(error, EmbeddedError::NotReady { .. }), "{error}");
}

#[tokio::test]
async fn a_newer_nats_server_works_where_it_is_named() {
    let Some(newer) = std::env::var_os("NATS_SERVER") else {
        eprintln!("skipped: NATS_SERVER names no other nats-server");
        return;
    };
    let nats = PrivateNats::start(NatsOptions::new()).await.unwrap();
    let client = connect(&nats.url()).await.unwrap();
    let version = std::process::Command::new(newer)
        .arg("--version")
        .output()
        .unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    assert!(
        version.contains(&client.server_info().version),
        "{version} was named"
    );
}
