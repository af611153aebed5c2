//! A connection that Ctrl-C ends wherever it waits. Knows bytes, no HTTP.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::address::Address;
use crate::interrupt::Interrupt;

/// How soon Ctrl-C is noticed.
const GLANCE: Duration = Duration::from_millis(50);
/// How long a server may take to accept a connection.
const LONGEST_CONNECT: Duration = Duration::from_secs(10);

/// An open connection; dropped, it is closed, and the server stops answering.
pub struct Connection {
    stream: TcpStream,
    interrupt: Interrupt,
}

impl Connection {
    /// Connects to the first of the host's addresses that answers.
    pub fn open(address: &Address, interrupt: &Interrupt) -> io::Result<Connection> {
        let (sender, receiver) = channel();
        let (host, port) = (address.host.clone(), address.port);
        // Neither the name's lookup nor the connecting can be stopped: a thread of its own waits for them.
        std::thread::spawn(move || sender.send(connect(&host, port)));
        let stream = loop {
            match receiver.recv_timeout(GLANCE) {
                Ok(connected) => break connected?,
                Err(RecvTimeoutError::Timeout) if !interrupt.pressed() => {}
                Err(_) => return Err(stopped()),
            }
        };
        stream.set_read_timeout(Some(GLANCE))?;
        stream.set_write_timeout(Some(GLANCE))?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, interrupt: interrupt.clone() })
    }

    /// Tries until something happened other than nothing, or Ctrl-C.
    fn wait(&mut self, mut attempt: impl FnMut(&mut TcpStream) -> io::Result<usize>) -> io::Result<usize> {
        loop {
            if self.interrupt.pressed() {
                return Err(stopped());
            }
            match attempt(&mut self.stream) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                done => return done,
            }
        }
    }
}

fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, LONGEST_CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Not `ErrorKind::Interrupted`, after which readers try again.
fn stopped() -> io::Error {
    io::Error::other("stopped by Ctrl-C")
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait(|stream| stream.read(buffer))
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
