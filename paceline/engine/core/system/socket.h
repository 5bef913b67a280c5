#pragma once

// Stream sockets with deadlines: TCP over IPv4 or IPv6, and Unix sockets. All descriptors are
// non-blocking and close-on-exec; every call that may wait for a peer takes a Deadline. SIGPIPE is
// never raised.
//
// Thread safety: any thread may call; a descriptor may have one reader and one writer at a time.

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

// Parses a host as users write it: a name, an IPv4 address, or an IPv6 address with or without
// brackets ("fe80::1%eth0" with its interface). Throws Error(kInvalid) for anything else, and for
// 0.0.0.0 and ::, which name no host. `what` names the flag or variable in the message.
std::string parse_host(const std::string& text, const std::string& what);
// "host:port" or "[v6]:port". Throws Error(kInvalid) for any other text; hosts are as in
// parse_host().
Endpoint parse_endpoint(const std::string& text, const std::string& what);
std::string to_string(const Endpoint& endpoint);
// The numeric address in an IPv4 or IPv6 socket address, without the port; empty for other kinds.
std::string address_text(const sockaddr* address);
// Why `host` does not resolve now: "the address 'h' does not resolve: ..."; empty when it resolves.
// The call may take as long as the system's resolver waits for its servers.
std::string why_unresolved(const std::string& host);
// Waits until `host` resolves: the name of a container or pod appears only when the container or
// pod starts. Throws Error(kInvalid) at the deadline, or when too little time is left for another
// attempt.
void await_address(const std::string& host, Deadline deadline);
// Whether `host` is a numeric address, in any form that the resolver takes (also "127.1"), and not
// a name.
bool is_numeric(const std::string& host);
// True for 127.0.0.0/8, ::1 and the names of loopback ("localhost", "localhost.localdomain", ...).
bool is_loopback(const std::string& host);
// Whether one of the addresses of `host` belongs to this host. Throws Error(kInvalid) when `host`
// does not resolve.
bool is_of_this_host(const std::string& host);

// Listens on one address only: the first to which `endpoint.host` resolves and which belongs to
// this host ("127.0.0.1" means loopback only). Port 0 picks a free port. Throws Error(kSystem),
// which names the endpoint, and Error(kInvalid) when the host does not resolve.
Fd listen_tcp(const Endpoint& endpoint, int backlog = 1024);
// As above, for an endpoint that other hosts use too. If only this host resolves the name to
// loopback ("127.0.1.1 box" in Debian's /etc/hosts), the socket listens on all addresses; so
// authenticate every connection. A numeric address and "localhost" are taken literally.
Fd listen_tcp_for_others(const Endpoint& endpoint, int backlog = 1024);
// As above, for the process to whose endpoint all other processes connect. If the address does not
// belong to this host, as behind a Kubernetes Service, NAT or a published port, a warning is logged
// and the socket listens on all addresses.
Fd listen_tcp_as_host(const Endpoint& endpoint, int backlog = 1024);
// Whether `host`, which resolves to `addresses` here, is a name that resolves to loopback on this
// machine ("127.0.1.1 box" in Debian's /etc/hosts), so that other machines see another address.
bool resolves_to_loopback_only_here(const std::string& host,
                                    const std::vector<std::string>& addresses);
// Listens under a name in Linux's abstract namespace. The name is visible in the whole network
// namespace and disappears with the last descriptor, so that a process that dies leaves nothing
// behind. The name has no permissions; authenticate every connection (authentication.h).
Fd listen_unix(const std::string& name, int backlog = 1024);
// The port of a listening socket.
std::uint16_t local_port(const Fd& socket);
// The numeric address of the local end of a connected socket.
std::string local_address(const Fd& socket);
// The numeric address and port of the other end of a TCP connection. Throws Error(kPeerLost) when
// the connection is closed.
Endpoint peer_endpoint(const Fd& socket);
// The other end of any socket, as text for messages.
std::string peer_name(const Fd& socket);

// Connects, and tries again until the deadline, because the listener may not be up yet; waits for
// an address as await_address() does. Throws Error(kTimeout), which names the endpoint and the last
// cause, kInvalid as await_address(), and kSystem for other causes. If `refused_for` is given,
// throws Error(kPeerLost) once the connection has been refused for that long. Sets TCP_NODELAY.
Fd connect_tcp(const Endpoint& endpoint, Deadline deadline,
               std::optional<std::chrono::milliseconds> refused_for = {});
Fd connect_unix(const std::string& name, Deadline deadline);

// A non-blocking connect that tries each address of the name in turn.
class ConnectAttempt {
 public:
  // Throws Error(kInvalid) when the name does not resolve, which may take as long as the resolver
  // waits.
  explicit ConnectAttempt(const Endpoint& endpoint);
  static ConnectAttempt to_unix(const std::string& name);

  // Starts the attempt, or continues it once socket() is ready for POLLOUT. Returns 0 when
  // connected, EINPROGRESS when the caller must poll for POLLOUT, or the error number of the last
  // failure.
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
// Whether an attempt that ended with `error` is worth repeating, because a process may soon listen
// at the address.
bool is_retryable_connect_error(int error);

// Waits for the next connection; returns an empty Fd when none arrived by the deadline.
Fd accept_connection(const Fd& listener, Deadline deadline);

// Makes a TCP connection fail (ETIMEDOUT) when the other host has not answered for about `limit`,
// in whole seconds, even while nothing is sent. Use it only for connections with little unsent
// data: a receiver that does not read counts as silent as well. No effect on Unix sockets.
void end_on_silence(const Fd& socket, std::chrono::seconds limit);

// Waits until `fd` is ready for `events` (POLLIN, POLLOUT); returns false at the deadline.
bool wait_ready(int fd, short events, Deadline deadline);

// Whole-buffer transfers. They throw Error(kTimeout) at the deadline, and Error(kPeerLost) when the
// other end closed or reset the connection.
void send_all(const Fd& socket, std::span<const std::byte> bytes, Deadline deadline);
void receive_all(const Fd& socket, std::span<std::byte> bytes, Deadline deadline);

// The process at the other end of a Unix socket, as the kernel recorded it: the process that
// connected or that listens. Any user can claim a name in the abstract namespace, so check the
// credentials after connecting to such a name, before sending anything. Safe in signal handlers.
std::optional<ucred> peer_credentials(int socket);

}  // namespace paceline
