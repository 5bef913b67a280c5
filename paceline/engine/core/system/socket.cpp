#include "paceline/engine/core/system/socket.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <thread>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/io.h"

namespace paceline {

namespace {

using namespace std::chrono_literals;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const Endpoint& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int status =
      getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &list);
  if (status != 0) {
    fail(ErrorCode::kInvalid, "the address '{}' does not resolve: {}", endpoint.host,
         gai_strerror(status));
  }
  return {list, &freeaddrinfo};
}

Fd open_socket(int family) {
  Fd socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) throw system_error("socket()");
  return socket;
}

// Whether the kernel supports the address family: without IPv6, it cannot make an IPv6 socket.
bool has_family(int family) {
  const Fd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return socket || errno != EAFNOSUPPORT;
}

void set_option(const Fd& socket, int level, int name, int value) {
  setsockopt(socket.get(), level, name, &value, sizeof value);
}

struct UnixAddress {
  sockaddr_un address{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// The leading zero byte of sun_path makes the name abstract.
UnixAddress unix_address(const std::string& name) {
  UnixAddress result;
  result.address.sun_family = AF_UNIX;
  check(name.size() + 1 < sizeof result.address.sun_path,
        "the socket name '{}' is longer than {} bytes", name, sizeof result.address.sun_path - 2);
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

// Waits until the attempt succeeds or fails; returns the result of go_on(), or ETIMEDOUT.
int complete(ConnectAttempt& attempt, Deadline deadline) {
  for (;;) {
    const int error = attempt.go_on();
    if (error != EINPROGRESS) return error;
    if (!wait_ready(attempt.socket().get(), POLLOUT, deadline)) return ETIMEDOUT;
  }
}

// Makes new attempts, with growing pauses, until one succeeds, the deadline passes, or attempts
// have been refused for `refused_for`. A query to a name server may take long without being a
// standstill, so each Vigil begins after it.
template <class NewAttempt>
Fd connect_until(Deadline deadline, const std::string& name, NewAttempt new_attempt,
                 std::optional<std::chrono::milliseconds> refused_for = {}) {
  auto pause = 1ms;
  std::optional<Deadline> lost_at;  // set while attempts are refused
  for (;;) {
    ConnectAttempt attempt = new_attempt();
    Vigil vigil;
    const int error = complete(attempt, deadline);
    if (error == 0) return attempt.take();
    if (!is_retryable_connect_error(error)) throw system_error("connecting to " + name, error);
    const bool has_passed = vigil.sees_passed(deadline) || deadline.remaining() <= pause;
    const bool is_refused = error == ECONNREFUSED || error == ECONNRESET;
    if (!is_refused) lost_at.reset();
    if (is_refused && refused_for && !lost_at) lost_at = Deadline::after(*refused_for);
    if (lost_at && put_off(*lost_at).expired()) {
      fail(ErrorCode::kPeerLost, "could not connect to {}: {}", name, std::strerror(error));
    }
    if (has_passed) {
      fail(ErrorCode::kTimeout, "could not connect to {} in time: {}", name, std::strerror(error));
    }
    std::this_thread::sleep_for(pause);  // no event signals that a listener has started
    vigil.sees_passed(deadline);
    pause = std::min(pause * 2, 100ms);
  }
}

const sockaddr* generic(const sockaddr_storage& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// Resolves a numeric address without a name server; null for a name.
AddressList numeric_address(const std::string& host) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  const bool is_address = getaddrinfo(host.c_str(), nullptr, &hints, &list) == 0;
  return {is_address ? list : nullptr, &freeaddrinfo};
}

// Whether `host` is "0.0.0.0" or "::", in any notation.
bool is_unspecified(const std::string& host) {
  const AddressList list = numeric_address(host);
  if (!list) return false;
  if (list->ai_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(list->ai_addr)->sin_addr.s_addr == INADDR_ANY;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6*>(list->ai_addr)->sin6_addr;
  return IN6_IS_ADDR_UNSPECIFIED(&v6);
}

bool is_written_like_a_host(const std::string& text) {
  const bool v6 = text.find(':') != std::string::npos;
  return !text.empty() && text.front() != '-' &&
         std::all_of(text.begin(), text.end(), [&](unsigned char c) {
           const bool plain =
               (c < 0x80 && std::isalnum(c) != 0) || c == '.' || c == '-' || c == '_';
           return plain || (v6 && (c == ':' || c == '%'));
         });
}

// Returns 0, or the error number that tells why this host cannot listen at `address`.
int listen_at(const addrinfo& address, int backlog, Fd& socket) {
  if (!has_family(address.ai_family)) return EADDRNOTAVAIL;
  socket = open_socket(address.ai_family);
  set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.ai_family == AF_INET6)
    set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);  // "::" takes IPv4 too
  const bool listens = ::bind(socket.get(), address.ai_addr, address.ai_addrlen) == 0 &&
                       ::listen(socket.get(), backlog) == 0;
  return listens ? 0 : errno;
}

Fd listen_on_all(std::uint16_t port, int backlog) {
  return listen_tcp({has_family(AF_INET6) ? "::" : "0.0.0.0", port}, backlog);
}

std::uint16_t port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return 0;
}

sockaddr_storage local_socket_address(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw system_error("getsockname()");
  }
  return address;
}

}  // namespace

std::string address_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    constexpr int kPrefix = 12;  // precedes the IPv4 address on a dual-stack socket
    if (IN6_IS_ADDR_V4MAPPED(&v6)) {
      inet_ntop(AF_INET, v6.s6_addr + kPrefix, text, sizeof text);
    } else {
      inet_ntop(AF_INET6, &v6, text, sizeof text);
    }
  }
  return text;
}

std::string parse_host(const std::string& text, const std::string& what) {
  const bool in_brackets = text.size() > 2 && text.front() == '[' && text.back() == ']';
  std::string host = in_brackets ? text.substr(1, text.size() - 2) : text;
  const bool is_v6 = host.find(':') != std::string::npos;
  check(is_written_like_a_host(host) && (is_v6 || !in_brackets) && (!is_v6 || is_numeric(host)),
        "{}: '{}' is neither a host name nor a host address", what, text);
  check(!is_unspecified(host),
        "{}: '{}' stands for all addresses of any host; write the name or address of one host",
        what, text);
  return host;
}

Endpoint parse_endpoint(const std::string& text, const std::string& what) {
  const auto colon = text.rfind(':');
  Endpoint endpoint;
  std::optional<std::uint16_t> port;
  if (colon != std::string::npos && colon > 0) {
    endpoint.host = text.substr(0, colon);
    const bool is_v6 = endpoint.host.find(':') != std::string::npos;
    check(!is_v6 || (endpoint.host.front() == '[' && endpoint.host.back() == ']'),
          "{}: '{}': an IPv6 address needs brackets: [ADDRESS]:PORT", what, text);
    port = parse_number<std::uint16_t>(std::string_view(text).substr(colon + 1));
  }
  check(port.has_value(), "{}: '{}' is not HOST:PORT with a port from 0 to 65535", what, text);
  endpoint.host = parse_host(endpoint.host, what);
  endpoint.port = *port;
  return endpoint;
}

std::string to_string(const Endpoint& endpoint) {
  return endpoint.host.find(':') == std::string::npos
             ? fmt::format("{}:{}", endpoint.host, endpoint.port)
             : fmt::format("[{}]:{}", endpoint.host, endpoint.port);
}

std::string why_unresolved(const std::string& host) {
  try {
    resolve({host, 0}, 0);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

bool is_numeric(const std::string& host) { return numeric_address(host) != nullptr; }

bool is_loopback(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) {
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
  }
  std::string name = host;
  if (name.ends_with('.')) name.pop_back();
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name == "localhost" || name.starts_with("localhost.") || name.ends_with(".localhost") ||
         name == "ip6-localhost" || name == "ip6-loopback";
}

void await_address(const std::string& host, Deadline deadline) {
  constexpr auto kPause = 1s;
  for (bool is_first = true;; is_first = false) {
    const std::string why = why_unresolved(host);
    if (why.empty()) return;
    if (deadline.remaining() <= kPause) throw Error(ErrorCode::kInvalid, why);
    if (is_first) {
      log::warning(
          fmt::format("{}; trying again for up to {} s", why,
                      std::chrono::round<std::chrono::seconds>(deadline.remaining()).count()));
    }
    std::this_thread::sleep_for(kPause);  // no event signals that a name resolves
  }
}

bool is_of_this_host(const std::string& host) {
  const auto addresses = resolve({host, 0}, 0);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    if (!has_family(one->ai_family)) continue;
    const Fd socket = open_socket(one->ai_family);
    if (::bind(socket.get(), one->ai_addr, one->ai_addrlen) == 0) return true;
  }
  return false;
}

Fd listen_tcp(const Endpoint& endpoint, int backlog) {
  const auto addresses = resolve(endpoint, 0);
  Fd socket;
  int error = EADDRNOTAVAIL;
  for (const addrinfo* one = addresses.get(); one != nullptr && error == EADDRNOTAVAIL;
       one = one->ai_next) {
    error = listen_at(*one, backlog, socket);
  }
  if (error != 0) throw system_error("listening on " + to_string(endpoint), error);
  return socket;
}

bool resolves_to_loopback_only_here(const std::string& host,
                                    const std::vector<std::string>& addresses) {
  return !is_loopback(host) && !is_numeric(host) && !addresses.empty() &&
         is_loopback(addresses.front());
}

Fd listen_tcp_for_others(const Endpoint& endpoint, int backlog) {
  std::vector<std::string> addresses;
  const auto list = resolve(endpoint, 0);
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next)
    addresses.push_back(address_text(one->ai_addr));
  if (!resolves_to_loopback_only_here(endpoint.host, addresses))
    return listen_tcp(endpoint, backlog);
  return listen_on_all(endpoint.port, backlog);
}

Fd listen_tcp_as_host(const Endpoint& endpoint, int backlog) {
  if (is_of_this_host(endpoint.host)) return listen_tcp_for_others(endpoint, backlog);
  log::warning(
      fmt::format("{} is not an address of this host; listening on all addresses; the other ranks "
                  "can connect only if {} leads here",
                  endpoint.host, endpoint.host));
  return listen_on_all(endpoint.port, backlog);
}

Fd listen_unix(const std::string& name, int backlog) {
  const auto address = unix_address(name);
  Fd socket = open_socket(AF_UNIX);
  if (::bind(socket.get(), address.get(), address.length) != 0 ||
      ::listen(socket.get(), backlog) != 0) {
    const int error = errno;
    throw system_error("listening on the Unix socket " + name, error);
  }
  return socket;
}

std::uint16_t local_port(const Fd& socket) { return port_of(local_socket_address(socket)); }
std::string local_address(const Fd& socket) {
  return address_text(generic(local_socket_address(socket)));
}

Endpoint peer_endpoint(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail(ErrorCode::kPeerLost, "the other end of a connection has closed it: {}",
         std::strerror(errno));
  }
  return {address_text(generic(address)), port_of(address)};
}

std::string peer_name(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return "an unknown peer";
  }
  if (address.ss_family == AF_UNIX) return "a local process";
  return to_string(Endpoint{address_text(generic(address)), port_of(address)});
}

Fd connect_tcp(const Endpoint& endpoint, Deadline deadline,
               std::optional<std::chrono::milliseconds> refused_for) {
  const auto new_attempt = [&] {
    try {
      return ConnectAttempt(endpoint);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalid) throw;
    }
    await_address(endpoint.host, deadline);  // a name that resolves is looked up only once
    return ConnectAttempt(endpoint);
  };
  return connect_until(deadline, to_string(endpoint), new_attempt, refused_for);
}

Fd connect_unix(const std::string& name, Deadline deadline) {
  return connect_until(deadline, "the Unix socket " + name,
                       [&] { return ConnectAttempt::to_unix(name); });
}

ConnectAttempt::ConnectAttempt(const Endpoint& endpoint) {
  const auto list = resolve(endpoint, 0);
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    if (!has_family(one->ai_family)) continue;
    std::memcpy(&addresses_.emplace_back().bytes, one->ai_addr, one->ai_addrlen);
    addresses_.back().length = one->ai_addrlen;
  }
  if (addresses_.empty()) throw system_error("connecting to " + to_string(endpoint), EAFNOSUPPORT);
}

ConnectAttempt ConnectAttempt::to_unix(const std::string& name) {
  const UnixAddress address = unix_address(name);
  ConnectAttempt attempt;
  std::memcpy(&attempt.addresses_.emplace_back().bytes, &address.address, sizeof address.address);
  attempt.addresses_.back().length = address.length;
  return attempt;
}

int ConnectAttempt::go_on() {
  int error = ECONNREFUSED;
  if (socket_) {
    socklen_t size = sizeof error;
    getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  while (error != 0 && error != EINPROGRESS && next_ < addresses_.size()) {
    error = begin(addresses_[next_++]);
  }
  return error;
}

// Returns 0 or the error number of connect(); EAGAIN means that a Unix listener's queue is full.
int ConnectAttempt::begin(const Address& address) {
  socket_ = open_socket(address.bytes.ss_family);
  set_option(socket_, IPPROTO_TCP, TCP_NODELAY, 1);  // without effect on Unix sockets
  const auto* where = reinterpret_cast<const sockaddr*>(&address.bytes);
  return ::connect(socket_.get(), where, address.length) == 0 ? 0 : errno;
}

bool is_retryable_connect_error(int error) {
  return error == ECONNREFUSED || error == ENOENT || error == ETIMEDOUT || error == ECONNRESET ||
         error == EAGAIN || error == EHOSTUNREACH || error == ENETUNREACH;
}

Fd accept_connection(const Fd& listener, Deadline deadline) {
  for (;;) {
    Fd socket(accept_one(listener.get()));
    if (socket) {
      set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);  // without effect on Unix sockets
      return socket;
    }
    if (errno != EAGAIN) throw system_error("accept()");
    if (!wait_ready(listener.get(), POLLIN, deadline)) return {};
  }
}

// The kernel sends one probe per second after the first silent second. TCP_USER_TIMEOUT limits the
// time without an answer, both to probes and to data.
void end_on_silence(const Fd& socket, std::chrono::seconds limit) {
  const auto probes = static_cast<int>(std::max<std::chrono::seconds::rep>(1, limit.count() - 1));
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, probes);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(limit.count() * 1000));
}

bool wait_ready(int fd, short events, Deadline deadline) {
  if (await(fd, events, deadline)) return true;
  if (errno == ETIMEDOUT) return false;
  throw system_error("poll()");
}

void send_all(const Fd& socket, std::span<const std::byte> bytes, Deadline deadline) {
  if (send_whole(socket.get(), bytes, deadline)) return;
  const int error = errno;
  if (error == ETIMEDOUT && deadline.expired()) {
    fail(ErrorCode::kTimeout, "sending to {} took too long", peer_name(socket));
  }
  fail(ErrorCode::kPeerLost, "the connection to {} broke while sending: {}", peer_name(socket),
       std::strerror(error));
}

void receive_all(const Fd& socket, std::span<std::byte> bytes, Deadline deadline) {
  const ssize_t got = receive_whole(socket.get(), bytes, deadline);
  if (got == static_cast<ssize_t>(bytes.size())) return;
  const int error = errno;
  if (got < 0 && error == ETIMEDOUT && deadline.expired()) {
    fail(ErrorCode::kTimeout, "waiting for bytes from {} took too long", peer_name(socket));
  }
  fail(ErrorCode::kPeerLost, "the connection to {} broke while receiving: {}", peer_name(socket),
       got >= 0 ? "it was closed" : std::strerror(error));
}

std::optional<ucred> peer_credentials(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return {};
  return peer;
}

}  // namespace paceline
