//! What systemd hears from the hub: a real socket on the other end of `$NOTIFY_SOCKET`.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use promethean_e2e::{Setup, get};

/// The next message; its lines.
fn next(socket: &UnixDatagram) -> Vec<String> {
    let mut bytes = [0; 4096];
    let length = socket.recv(&mut bytes).expect("a message in time");
    String::from_utf8_lossy(&bytes[..length]).lines().map(str::to_owned).collect()
}

fn patient(socket: UnixDatagram) -> UnixDatagram {
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
    socket
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_is_told_once_the_ports_are_open_and_stopping_before_the_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("notify");
    let socket = patient(UnixDatagram::bind(&path).expect("a socket"));
    let setup = Setup::log(&dir.path().join("data")).env("NOTIFY_SOCKET", path.to_str().expect("text"));
    let mut hub = setup.start();
    let said = next(&socket);
    assert_eq!(said, ["READY=1".to_owned(), format!("STATUS={}", hub.ready)]);
    assert_eq!(get(hub.http, "/readyz").await.status, 200);
    assert!(hub.terminate().success());
    assert_eq!(next(&socket)[0], "STOPPING=1");
    socket.set_nonblocking(true).expect("set");
    assert!(socket.recv(&mut [0; 64]).is_err(), "without WATCHDOG_USEC nothing else is told");
}

#[test]
fn an_abstract_socket_hears_the_watchdog_for_as_long_as_the_hub_lives() {
    let name = format!("promethean-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let socket = patient(UnixDatagram::bind_addr(&address).expect("a socket"));
    let setup = Setup::memory().env("NOTIFY_SOCKET", &format!("@{name}")).env("WATCHDOG_USEC", "100000");
    let mut hub = setup.start();
    assert_eq!(next(&socket)[0], "READY=1");
    for _ in 0..5 {
        assert_eq!(next(&socket), ["WATCHDOG=1"]);
    }
    assert!(hub.terminate().success());
    let last = std::iter::from_fn(|| Some(next(&socket)[0].clone())).find(|said| said != "WATCHDOG=1");
    assert_eq!(last.as_deref(), Some("STOPPING=1"));
}

#[test]
fn a_socket_where_nobody_is_does_not_keep_the_hub_from_serving() {
    let mut hub = Setup::memory().env("NOTIFY_SOCKET", "/nowhere/notify").start();
    let started = std::time::Instant::now();
    while !hub.log().contains("systemd could not be told how the hub is") {
        assert!(started.elapsed() < Duration::from_secs(60), "{}", hub.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(hub.terminate().success());
}
