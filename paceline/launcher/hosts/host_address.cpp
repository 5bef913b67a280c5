#include "paceline/launcher/hosts/host_address.h"

#include <memory>
#include <set>

#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>

#include "paceline/engine/core/fd.h"
#include "paceline/engine/core/host.h"
#include "paceline/engine/core/socket.h"

namespace paceline::launcher {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Null when the name does not resolve.
AddressList resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  // The port is only there so that a socket can be connected to the result.
  const bool found = getaddrinfo(host.c_str(), "9", &hints, &list) == 0;
  return {found ? list : nullptr, &freeaddrinfo};
}

std::string text_of(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = "";
  getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

std::set<std::string> own_addresses() {
  std::set<std::string> own;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return own;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(first, &freeifaddrs);
  for (const ifaddrs* one = list.get(); one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    if (family == AF_INET) own.insert(text_of(one->ifa_addr, sizeof(sockaddr_in)));
    if (family == AF_INET6) own.insert(text_of(one->ifa_addr, sizeof(sockaddr_in6)));
  }
  return own;
}

}  // namespace

bool is_this_machine(const std::string& host) {
  const std::string name = host_name();
  if (is_loopback(host) || host == name || host == name.substr(0, name.find('.'))) return true;
  const AddressList list = resolve(host);
  if (!list) return false;
  const auto own = own_addresses();
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    const std::string address = text_of(one->ai_addr, one->ai_addrlen);
    if (is_loopback(address) || own.contains(address)) return true;
  }
  return false;
}

std::string numeric_address(const std::string& host) {
  const AddressList list = resolve(host);
  return list ? text_of(list->ai_addr, list->ai_addrlen) : "";
}

std::string own_address_towards(const std::string& host) {
  const AddressList list = resolve(host);
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    const Fd socket(::socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket || ::connect(socket.get(), one->ai_addr, one->ai_addrlen) != 0) continue;
    return local_address(socket);
  }
  return "";
}

}  // namespace paceline::launcher
