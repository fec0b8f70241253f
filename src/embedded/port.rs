use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use super::random;

/// How many ports are looked at before giving up: with this many taken, something else is wrong.
const CANDIDATES: usize = 200;

/// A port that a private server uses, kept out of the way of others for as long as this value lives.
///
/// Binding port 0 would be simpler, but gives a port of the range that the kernel hands to outgoing connections.
/// While such a server is down, a client that tries to reconnect can be given the server's own port as its source
/// port (and is then connected to itself), and the restart finds its port taken. So the port comes from below
/// that range, and is marked as taken for other private servers of this machine, which look there too.
#[derive(Debug)]
pub(super) struct ReservedPort {
    number: u16,
    #[cfg(target_os = "linux")]
    _mark: std::os::unix::net::UnixListener,
}

impl ReservedPort {
    /// A port on which nobody listens at this moment. The server binds it later, so its start must still reckon
    /// with somebody else having been faster.
    pub(super) fn pick() -> io::Result<Self> {
        let range = candidates();
        for _ in 0..CANDIDATES {
            let offset = u16::from_ne_bytes(random::bytes()?) % (range.end - range.start);
            if let Some(port) = Self::reserve(range.start + offset)? {
                return Ok(port);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!("no free port found in {range:?}"),
        ))
    }

    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// The mark is a socket with a name of its own in Linux's abstract namespace, which spans the same network
    /// namespace as the port does, and ends with this process: nothing to clean up.
    #[cfg(target_os = "linux")]
    fn reserve(number: u16) -> io::Result<Option<Self>> {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};

        let name = SocketAddr::from_abstract_name(format!("twinbox-port-{number}"))?;
        let mark = UnixListener::bind_addr(&name).ok();
        Ok(mark
            .filter(|_| is_free(number))
            .map(|mark| Self { number, _mark: mark }))
    }

    #[cfg(not(target_os = "linux"))]
    fn reserve(number: u16) -> io::Result<Option<Self>> {
        Ok(is_free(number).then_some(Self { number }))
    }
}

fn is_free(number: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok()
}

/// Ports below those of outgoing connections, or a wide range where there is no room below.
fn candidates() -> Range<u16> {
    let first_outgoing = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse::<u16>().ok());
    match first_outgoing {
        Some(first) if first >= 20_000 => 12_000..first,
        _ => 20_000..49_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_in_use_and_ports_reserved_are_left_alone() {
        let port = ReservedPort::pick().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).unwrap();
        if cfg!(target_os = "linux") {
            assert!(
                ReservedPort::reserve(port.number()).unwrap().is_none(),
                "reserved"
            );
        }
        let number = port.number();
        drop(port);
        assert!(
            ReservedPort::reserve(number).unwrap().is_none(),
            "somebody listens"
        );
        drop(listener);
        assert!(ReservedPort::reserve(number).unwrap().is_some());
    }
}
