#include "paceline/engine/core/network_interface.h"

#include <algorithm>
#include <memory>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include "paceline/engine/core/check.h"

namespace paceline {
namespace {

std::vector<std::string_view> items_of(std::string_view list) {
  std::vector<std::string_view> items;
  while (!list.empty()) {
    const auto end = std::min(list.find(','), list.size());
    if (end > 0) items.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return items;
}

// Empty for anything but an address that other hosts may reach.
std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (!IN6_IS_ADDR_LINKLOCAL(&v6)) inet_ntop(AF_INET6, &v6, text, sizeof text);
  }
  return text;
}

// The first interface of `there` that `fits`, in the preferred family if it can be had.
template <class Fits>
const InterfaceAddress* find(const std::vector<InterfaceAddress>& there, bool prefer_v6,
                             Fits fits) {
  const auto first = std::find_if(there.begin(), there.end(), fits);
  if (first == there.end()) return nullptr;
  for (const auto& one : there) {
    if (one.interface == first->interface && one.is_v6 == prefer_v6) return &one;
  }
  return &*first;
}

std::string names_of(const std::vector<InterfaceAddress>& there) {
  std::string names;
  for (const auto& one : there) {
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", one.interface, one.address);
  }
  return names.empty() ? "none" : names;
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* entries = nullptr;
  if (::getifaddrs(&entries) != 0) throw system_error("getifaddrs()");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(entries, &freeifaddrs);
  std::vector<InterfaceAddress> there;
  for (const ifaddrs* entry = entries; entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_UP) == 0 || entry->ifa_addr == nullptr) continue;
    const std::string address = text_of(entry->ifa_addr);
    if (address.empty()) continue;
    there.push_back({entry->ifa_name, address, entry->ifa_addr->sa_family == AF_INET6,
                     (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return there;
}

std::string choose_address(std::string_view wanted, const std::vector<InterfaceAddress>& there,
                           bool prefer_v6) {
  const bool excludes = wanted.starts_with('^');
  const bool is_exact = wanted.starts_with('=');
  const auto items = items_of(excludes || is_exact ? wanted.substr(1) : wanted);
  const auto begins_with_one = [&](const InterfaceAddress& one) {
    return std::any_of(items.begin(), items.end(),
                       [&](std::string_view item) { return one.interface.starts_with(item); });
  };
  if (excludes || items.empty()) {
    const auto* found = find(there, prefer_v6, [&](const InterfaceAddress& one) {
      return !one.is_loopback && !begins_with_one(one);
    });
    if (found != nullptr) return found->address;
    if (items.empty()) return "127.0.0.1";
  }
  for (const std::string_view item : items) {
    if (excludes) break;
    const auto* found = find(there, prefer_v6, [&](const InterfaceAddress& one) {
      return is_exact ? one.interface == item : one.interface.starts_with(item);
    });
    if (found != nullptr) return found->address;
  }
  fail(ErrorCode::kInvalid,
       "PACELINE_SOCKET_IFNAME={} leaves no interface of this host; those that are up: {}", wanted,
       names_of(there));
}

bool is_link_local(const std::string& address) {
  in6_addr v6{};
  const std::string plain = address.substr(0, address.find('%'));
  return inet_pton(AF_INET6, plain.c_str(), &v6) == 1 && IN6_IS_ADDR_LINKLOCAL(&v6);
}

}  // namespace paceline
