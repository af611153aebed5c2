//! The address of a server, as `--server` takes it.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// What an address looks like.
const EXAMPLE: &str = "give an address such as http://127.0.0.1:8080";

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Name and port as requests carry them, `[::1]:8080` for instance.
    pub authority: String,
    /// Name or number to connect to, without brackets.
    pub host: String,
    /// Port to connect to.
    pub port: u16,
    /// What stands before `/v1`, where a proxy serves several things.
    prefix: String,
}

impl Address {
    /// The path of an endpoint.
    pub fn path(&self, endpoint: &str) -> String {
        format!("{}/v1/{endpoint}", self.prefix)
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.prefix)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let rest = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => {
                return Err(format!(
                    "mambo asks servers over plain HTTP alone; use http://, for a server elsewhere through a \
                     tunnel such as `ssh -L 8080:localhost:8080 {}`",
                    rest.split(['/', ':']).next().unwrap_or_default()
                ));
            }
            Some((scheme, _)) => return Err(format!("`{scheme}` is not http; {EXAMPLE}")),
            None => text,
        };
        if rest.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(format!("it has white space in it; {EXAMPLE}"));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err("a name or key before `@` is not sent; --api-key-file gives a key".to_owned());
        }
        if path.contains(['?', '#']) {
            return Err(format!("it has `?` or `#` in it; {EXAMPLE}"));
        }
        let (host, port) = host_and_port(authority)?;
        // What clients of OpenAI's call the base ends in /v1.
        let path = path.trim_end_matches('/');
        let path = if path == "v1" { "" } else { path.strip_suffix("/v1").unwrap_or(path) };
        let prefix = if path.is_empty() { String::new() } else { format!("/{path}") };
        Ok(Address { authority: authority.to_owned(), host, port, prefix })
    }
}

fn host_and_port(authority: &str) -> Result<(String, u16), String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(|| format!("`]` is missing; {EXAMPLE}"))?;
            (host, port.strip_prefix(':'))
        }
        None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(format!("it names no host; {EXAMPLE}"));
    }
    match port {
        None => Ok((host.to_owned(), 80)),
        Some(port) => match port.parse() {
            Ok(port) => Ok((host.to_owned(), port)),
            Err(_) => Err(format!("`{port}` is not a port; {EXAMPLE}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let read = |text: &str| {
            let address: Address = text.parse().unwrap();
            let path = address.path("models");
            (address.to_string(), address.host, address.port, path)
        };
        let local = ("http://127.0.0.1:8080".into(), "127.0.0.1".into(), 8080, "/v1/models".into());
        for text in ["127.0.0.1:8080", "http://127.0.0.1:8080/", "http://127.0.0.1:8080/v1/"] {
            assert_eq!(read(text), local, "{text}");
        }
        let behind = ("http://[::1]/llm".into(), "::1".into(), 80, "/llm/v1/models".into());
        assert_eq!(read("HTTP://[::1]/llm/v1"), behind);
    }

    #[test]
    fn mistakes_say_what_helps() {
        let cases = [
            ("https://gpu.example:8443/v1", "ssh -L 8080:localhost:8080 gpu.example"),
            ("ftp://x", "`ftp` is not http; give an address such as http://"),
            ("http://", "names no host"),
            ("http://x:port", "`port` is not a port"),
            ("http://[::1:80", "`]` is missing"),
            ("http://me:secret@x", "--api-key-file"),
            ("http://x/\r\nhost: y", "white space"),
            ("http://x/?key=1", "`?` or `#`"),
        ];
        for (text, want) in cases {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.contains(want), "{text}: {error}");
        }
    }
}
