//! As much HTTP/1.1 as one POST needs: a head out, a head in, and a body that is chunked, counted or ends with the
//! connection. Works on any stream of bytes; knows no URLs and no JSON.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};

/// Most bytes of a line of a head.
const LONGEST_LINE: u64 = 64 << 10;
/// Most lines of a head.
const MOST_LINES: usize = 256;

/// What a request says besides its body.
pub struct Head<'a> {
    /// The path, from the slash.
    pub path: &'a str,
    /// The server's name and port.
    pub authority: &'a str,
    /// The API key.
    pub key: Option<&'a str>,
}

/// A response whose body has yet to be read.
pub struct Response<S> {
    /// The status.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The body, free of its framing.
    pub body: BufReader<Body<S>>,
}

impl<S> Response<S> {
    /// A header, by its name in small letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

/// Sends JSON and reads the head of what comes back.
pub fn post<S: Read + Write>(mut stream: S, head: &Head, json: &str) -> io::Result<Response<S>> {
    let mut request = format!(
        "POST {} HTTP/1.1\r\nhost: {}\r\nuser-agent: mambo/{}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\naccept: text/event-stream, application/json\r\nconnection: close\r\n",
        head.path,
        head.authority,
        env!("CARGO_PKG_VERSION"),
        json.len()
    );
    if let Some(key) = head.key {
        request += &format!("authorization: Bearer {key}\r\n");
    }
    request += "\r\n";
    request += json;
    let sent = stream.write_all(request.as_bytes()).and_then(|()| stream.flush());
    // A server may refuse before it has read everything, and says why.
    read_head(BufReader::new(stream)).map_err(|error| sent.err().unwrap_or(error))
}

fn read_head<S: Read>(mut stream: BufReader<S>) -> io::Result<Response<S>> {
    let first = line(&mut stream)?;
    let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
    let status = status.ok_or_else(|| broken("it does not answer in HTTP/1.1"))?;
    let mut headers = Vec::new();
    loop {
        let line = line(&mut stream)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| broken("a header has no colon"))?;
        headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        if headers.len() > MOST_LINES {
            return Err(broken("the head does not end"));
        }
    }
    let header = |name: &str| headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
    let framing = if header("transfer-encoding").is_some_and(|how| how.eq_ignore_ascii_case("chunked")) {
        Framing::Chunked { left: 0, begun: false }
    } else {
        match header("content-length") {
            Some(count) => {
                Framing::Counted(count.parse().map_err(|_| broken("content-length is no number"))?)
            }
            None => Framing::ToEnd,
        }
    };
    Ok(Response { status, headers, body: BufReader::new(Body { stream, framing }) })
}

/// A line of a head without its end.
fn line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut bytes = Vec::new();
    stream.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut bytes)?;
    if bytes.pop() != Some(b'\n') {
        return Err(early());
    }
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    String::from_utf8(bytes).map_err(|_| broken("the head is not text"))
}

fn broken(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

fn early() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the connection was closed too early")
}

enum Framing {
    /// Chunks, each after its length; a length of 0 ends them.
    Chunked {
        left: u64,
        begun: bool,
    },
    Counted(u64),
    ToEnd,
}

/// A body as it was before it was cut up to travel.
pub struct Body<S> {
    stream: BufReader<S>,
    framing: Framing,
}

impl<S: Read> Read for Body<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Framing::Chunked { left: left @ 0, begun } = &mut self.framing {
            if std::mem::replace(begun, true) && !line(&mut self.stream)?.is_empty() {
                return Err(broken("a chunk is longer than it says"));
            }
            let length = line(&mut self.stream)?;
            let digits = length.split(';').next().unwrap_or_default().trim();
            *left = u64::from_str_radix(digits, 16).map_err(|_| broken("a chunk has no length"))?;
            if *left == 0 {
                // Trailers, if any, say nothing of interest.
                self.framing = Framing::Counted(0);
            }
        }
        let left = match &mut self.framing {
            Framing::ToEnd => return self.stream.read(buffer),
            Framing::Chunked { left, .. } | Framing::Counted(left) => left,
        };
        let most = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
        // To ask for nothing may still wait for more.
        if most == 0 {
            return Ok(0);
        }
        let count = self.stream.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(early());
        }
        *left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that says the same whatever it hears, a byte at a time.
    struct Says<'a>(&'a [u8], Vec<u8>);

    impl Read for Says<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let most = buffer.len().min(1);
            self.0.read(&mut buffer[..most])
        }
    }

    impl Write for Says<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn body(answer: &str) -> io::Result<String> {
        let head = Head { path: "/v1/x", authority: "h:1", key: Some("k") };
        let mut response = post(Says(answer.as_bytes(), Vec::new()), &head, "{}")?;
        assert_eq!((response.status, response.header("x-a")), (200, Some("b")));
        let mut text = String::new();
        response.body.read_to_string(&mut text)?;
        let asked = String::from_utf8(response.body.into_inner().stream.into_inner().1).unwrap();
        assert!(asked.starts_with("POST /v1/x HTTP/1.1\r\nhost: h:1\r\n"), "{asked}");
        assert!(asked.contains("authorization: Bearer k\r\n") && asked.ends_with("\r\n\r\n{}"), "{asked}");
        Ok(text)
    }

    #[test]
    fn every_framing_gives_the_same_body() {
        for answer in [
            "HTTP/1.1 200 OK\r\nX-A:  b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nC;x=y\r\ndefghijklmno\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx-a: b\r\nContent-Length: 15\r\n\r\nabcdefghijklmnoXX",
            "HTTP/1.0 200\nx-a: b\n\nabcdefghijklmno",
        ] {
            assert_eq!(body(answer).unwrap(), "abcdefghijklmno", "{answer}");
        }
    }

    #[test]
    fn what_ends_early_or_is_no_http_is_an_error() {
        let chunked = "HTTP/1.1 200 OK\r\nx-a: b\r\ntransfer-encoding: chunked\r\n\r\n";
        for (answer, want) in [
            ("", "closed too early"),
            ("SSH-2.0-OpenSSH\r\n", "does not answer in HTTP"),
            ("HTTP/1.1 200 OK\r\nx-a b\r\n\r\n", "no colon"),
            ("HTTP/1.1 200 OK\r\nx-a: b\r\ncontent-length: 9\r\n\r\nabc", "closed too early"),
            (&format!("{chunked}5\r\nabc"), "closed too early"),
            (&format!("{chunked}3\r\nabc\r\n"), "closed too early"),
            (&format!("{chunked}2\r\nabc\r\n"), "longer than it says"),
            (&format!("{chunked}zz\r\nabc\r\n"), "no length"),
        ] {
            let error = body(answer).unwrap_err().to_string();
            assert!(error.contains(want), "{answer:?}: {error}");
        }
    }
}
