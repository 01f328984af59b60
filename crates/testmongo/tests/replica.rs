//! What the other tests rely on: a set that elects, survives a killed member, and ends with whoever started it.

use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mongodb::bson::doc;
use promethean_testmongo::{SHARED, Scratch, Setup};

fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[test]
fn a_set_of_three_elects_another_primary_and_takes_the_old_one_back() {
    let mut replica = Setup::default().members(3).start();
    let first = replica.primary();
    replica.kill(first);
    assert!(!listens(replica.ports()[first]), "it is dead");
    let second = replica.primary();
    assert_ne!(first, second);
    replica.restart(first);
    let states = replica.command(second, doc! { "replSetGetStatus": 1 }).expect("a status");
    assert_eq!(states.get_array("members").expect("members").len(), 3);
    let ports = replica.ports();
    drop(replica);
    assert!(ports.into_iter().all(|port| !listens(port)), "all have ended");
}

#[test]
fn every_scratch_is_a_database_of_its_own() {
    let (one, two) = (Scratch::new(), Scratch::new());
    assert_ne!(one.name(), two.name());
    assert!(one.url().contains(one.name()));
}

#[test]
fn a_set_ends_when_whoever_started_it_is_killed() {
    let mut starter = Command::new(env!("CARGO_BIN_EXE_with-mongo"))
        .args(["sh", "-c", &format!("echo ${SHARED}; read _")])
        .stdin(Stdio::piped())
        .env_remove(SHARED)
        .env_remove("MONGO_URL")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let stdout = starter.stdout.take().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("the address");
    let port = line.split(['/', ':']).find_map(|part| part.parse().ok()).expect("a port in the address");
    assert!(listens(port));
    starter.kill().expect("killed");
    starter.wait().expect("ended");
    let began = Instant::now();
    while listens(port) {
        assert!(began.elapsed() < Duration::from_secs(30), "mongod outlives the one that started it");
        std::thread::sleep(Duration::from_millis(100));
    }
}
