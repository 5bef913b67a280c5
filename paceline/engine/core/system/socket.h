#pragma once

// Stream sockets with deadlines: TCP over IPv4 or IPv6, and Unix sockets. All descriptors are
// non-blocking and close-on-exec; every call that may wait takes a Deadline. SIGPIPE is never
// raised.
//
// Thread safety: free functions; a descriptor may be used by one reader and one writer at a time.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"

namespace paceline {

struct Endpoint {
  std::string host;  // name or address, without brackets
  std::uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;
};

// A host as users write it: a name, an IPv4 address, or an IPv6 address with or without brackets
// ("fe80::1%eth0" with its interface). Error(kInvalid) for anything else, and for 0.0.0.0 and ::,
// which name no host; `what` names the flag or variable in the message.
std::string parse_host(const std::string& text, const std::string& what);
// "host:port" or "[v6]:port". Error(kInvalid) otherwise, as above.
Endpoint parse_endpoint(const std::string& text, const std::string& what);
std::string to_string(const Endpoint& endpoint);
// The numeric address in a socket address, without the port; empty for other kinds.
std::string address_text(const sockaddr* address);
// Why `host` has no address now: "the address 'h' does not resolve: ..."; empty when it has one.
// May take as long as the system's resolver waits for its servers.
std::string why_unresolved(const std::string& host);
// Waits until `host` has an address, because the names of containers and pods come with them. At
// the deadline, or where it is near, Error(kInvalid).
void await_address(const std::string& host, Deadline deadline);
// Whether `host` is an address, in any form that the resolver takes ("127.1" too), and no name.
bool is_numeric(const std::string& host);
// True for 127.0.0.0/8, ::1 and the names of loopback ("localhost", "localhost.localdomain", ...).
bool is_loopback(const std::string& host);
// Whether one of the addresses of `host` is this host's. Error(kInvalid) when it has none.
bool is_of_this_host(const std::string& host);

// Listens on exactly the first address of `endpoint.host`, in the order of resolution, that this
// host has ("127.0.0.1" means loopback only); port 0 picks a free one. Error(kSystem) names the
// endpoint.
Fd listen_tcp(const Endpoint& endpoint, int backlog = 1024);
// The same for an endpoint that other hosts were told: where its name leads to loopback on this
// host only ("127.0.1.1 box" in Debian's /etc/hosts), on all addresses, so authenticate what
// connects. A numeric address and "localhost" mean what they say.
Fd listen_tcp_for_others(const Endpoint& endpoint, int backlog = 1024);
// The same for the process that all others have been told to meet at the endpoint, whichever host
// has that address. Where this host does not have it, as behind a Kubernetes Service, NAT or a
// published port, it listens on all addresses, with a warning.
Fd listen_tcp_as_host(const Endpoint& endpoint, int backlog = 1024);
// Whether `host`, which resolves to `addresses` here, is a name that resolves to loopback on this
// machine ("127.0.1.1 box" in Debian's /etc/hosts), so that other machines see another address.
bool leads_elsewhere(const std::string& host, const std::vector<std::string>& addresses);
// Listens under a name in Linux's abstract namespace: visible inside the network namespace, gone
// with the last descriptor, so that nothing is left behind by any death. It has no permissions of
// its own; authenticate what connects (authentication.h).
Fd listen_unix(const std::string& name, int backlog = 1024);
// The port that a listening socket got.
std::uint16_t local_port(const Fd& socket);
// The numeric address of the local end of a connected socket.
std::string local_address(const Fd& socket);
// The numeric address and port of the other end of a TCP connection. Error(kPeerLost) when it is
// gone.
Endpoint peer_endpoint(const Fd& socket);
// The same for messages, of any socket.
std::string peer_name(const Fd& socket);

// Retries refused connections until the deadline: the listener may not be up yet; and waits for an
// address, as await_address(). Error(kTimeout) names the endpoint and the last cause. TCP_NODELAY
// is set.
Fd connect_tcp(const Endpoint& endpoint, Deadline deadline);
Fd connect_unix(const std::string& name, Deadline deadline);

// A connect that does not wait: it tries each address of the name in turn.
class ConnectAttempt {
 public:
  // Error(kInvalid) for a name without an address, which may take as long as the resolver waits.
  explicit ConnectAttempt(const Endpoint& endpoint);
  static ConnectAttempt to_unix(const std::string& name);

  // Begins, or goes on once socket() is ready for POLLOUT. 0: connected; EINPROGRESS: poll for
  // that; otherwise why there is no connection.
  int go_on();
  const Fd& socket() const { return socket_; }
  // Requires: go_on() returned 0.
  Fd take() { return std::move(socket_); }

 private:
  struct Address {
    sockaddr_storage bytes{};
    socklen_t length = 0;
  };
  ConnectAttempt() = default;
  int begin(const Address& address);

  std::vector<Address> addresses_;
  std::size_t next_ = 0;
  Fd socket_;
};
// Whether a process may listen there soon, after an attempt that ended with `error`.
bool may_come_up(int error);

// The next connection, or an empty Fd when none came within the deadline.
Fd accept_connection(const Fd& listener, Deadline deadline);

// Makes a TCP connection fail (ETIMEDOUT) when the other host has not answered for about `limit`,
// in whole seconds, also while nothing is sent. For connections on which hardly anything waits to
// be sent: a receiver that takes nothing counts as silent too. Without effect on Unix sockets.
void end_on_silence(const Fd& socket, std::chrono::seconds limit);

// Waits until `fd` is ready for `events` (POLLIN, POLLOUT); false when the deadline passed.
bool wait_ready(int fd, short events, Deadline deadline);

// Whole-buffer transfers. Error(kTimeout) at the deadline, Error(kPeerLost) when the other end
// closed or reset.
void send_all(const Fd& socket, std::span<const std::byte> bytes, Deadline deadline);
void receive_all(const Fd& socket, std::span<std::byte> bytes, Deadline deadline);

// The process at the other end of a Unix socket, as the kernel knows it: the one that connected, or
// the one that listens. Anybody can take a name in the abstract namespace, so a process that
// connects to one looks here before it sends anything. May be called in signal handlers.
std::optional<ucred> peer_credentials(int socket);

}  // namespace paceline
