#include "paceline/launcher/hosts/host_list.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include <netdb.h>
#include <sys/socket.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/output/line_formatter.h"

namespace paceline::launcher {

namespace {

constexpr std::size_t kMaxName = 253;  // the limit of the domain name system
constexpr std::size_t kMaxFile = 16 << 20;
constexpr std::size_t kShownText = 80;

// The text for use in a message: shortened, and without control characters.
std::string shown(const std::string& text) {
  const std::string start = neutralise(text.substr(0, kShownText));
  return text.size() > kShownText ? start + "..." : start;
}

bool is_alphanumeric_or(const std::string& text, std::string_view also) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](unsigned char c) {
    return (c < 0x80 && std::isalnum(c) != 0) ||
           also.find(static_cast<char>(c)) != std::string_view::npos;
  });
}

int parse_count(const std::string& text, const std::string& name, const std::string& where) {
  const auto value = parse_number<int>(text, 1, kMaxSlots);
  check(value.has_value(), "{}: {} '{}' is not a whole number from 1 to {}", where, name,
        shown(text), kMaxSlots);
  return *value;
}

// "name", "name:4", "user@name", "[v6]", "[v6]:4".
Host parse_host(const std::string& text, const std::string& where) {
  const auto bracket = text.find('[');
  const auto colon = text.find(':', bracket == std::string::npos ? 0 : text.find(']'));
  Host host{text.substr(0, colon)};
  if (bracket != std::string::npos) {
    const bool whole = host.name.ends_with(']') && (bracket == 0 || host.name[bracket - 1] == '@');
    check(whole, "{}: '{}' is not an IPv6 address in brackets", where, shown(text));
    host.name = host.name.substr(0, bracket) +
                host.name.substr(bracket + 1, host.name.size() - bracket - 2);
  }
  check(is_host_name(host.name) &&
            (host.name.find(':') == std::string::npos) == (bracket == std::string::npos),
        "{}: '{}' is not a host: [user@]name of letters, digits, '.', '-' and '_', optionally "
        "followed by :SLOTS",
        where, shown(text));
  if (colon != std::string::npos) host.slots = parse_count(text.substr(colon + 1), "slots", where);
  return host;
}

void take_attribute(Host& host, int& most, const std::string& word, const std::string& where) {
  const auto equals = word.find('=');
  std::string key = word.substr(0, equals);
  std::replace(key.begin(), key.end(), '-', '_');
  check(equals != std::string::npos && (key == "slots" || key == "max_slots"),
        "{}: '{}' is neither slots=N nor max_slots=N", where, shown(word));
  int& value = key == "slots" ? host.slots : most;
  check(value == 0, "{}: {} is given twice", where, key);
  value = parse_count(word.substr(equals + 1), key, where);
}

Host parse_line(const std::string& line, const std::string& where) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  Host host = parse_host(word, where);
  int most = 0;
  while (words >> word) take_attribute(host, most, word, where);
  check(most == 0 || host.slots <= most, "{}: slots={} is above max_slots={}", where, host.slots,
        most);
  return host;
}

void add(std::vector<Host>& hosts, std::set<std::string>& names, Host host,
         const std::string& where) {
  check(names.insert(host.address()).second,
        "{}: host '{}' is listed twice; list it once, with all its slots", where, host.name);
  hosts.push_back(std::move(host));
  check(hosts.size() <= kMaxHosts, "{}: more than {} hosts", where, kMaxHosts);
}

}  // namespace

bool is_host_name(const std::string& name) {
  const auto at = name.find('@');
  const std::string address = at == std::string::npos ? name : name.substr(at + 1);
  if (at != std::string::npos) {
    const std::string user = name.substr(0, at);
    if (!is_alphanumeric_or(user, "._-") || user.front() == '-') return false;
  }
  const bool v6 = address.find(':') != std::string::npos;
  return is_alphanumeric_or(address, v6 ? ":.%_-" : "._-") && address.front() != '-' &&
         address.size() <= kMaxName;
}

std::vector<Host> parse_host_list(const std::string& text, const std::string& where) {
  std::vector<Host> hosts;
  std::set<std::string> names;
  for (const std::string_view host : split(text, ','))
    add(hosts, names, parse_host(std::string(host), where), where);
  return hosts;
}

std::vector<Host> parse_hostfile(const std::string& text, const std::string& path) {
  std::vector<Host> hosts;
  std::set<std::string> names;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line.resize(std::min(line.find('#'), line.size()));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}, line {}", path, number);
    add(hosts, names, parse_line(line, where), where);
  }
  check(!hosts.empty(), "{}: it lists no host", path);
  return hosts;
}

std::vector<Host> read_hostfile(const std::string& path) {
  std::ifstream file(path);
  check(file.is_open(), "--hostfile {}: {}", path, std::strerror(errno));
  std::string text(kMaxFile + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  check(!file.bad(), "--hostfile {}: it cannot be read (is it a directory?)", path);
  text.resize(static_cast<std::size_t>(file.gcount()));
  check(text.size() <= kMaxFile, "--hostfile {}: it is larger than {} bytes", path, kMaxFile);
  return parse_hostfile(text, path);
}

namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// The addresses of `host`; null when the name does not resolve.
AddressList resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  // Any port will do: it is needed only to connect a socket to the result.
  const bool found = getaddrinfo(host.c_str(), "9", &hints, &list) == 0;
  return {found ? list : nullptr, &freeaddrinfo};
}

}  // namespace

bool is_this_machine(const std::string& host) {
  const std::string name = host_name();
  if (is_loopback(host) || host == name || host == name.substr(0, name.find('.'))) return true;
  try {
    return is_of_this_host(host);
  } catch (const Error&) {
    return false;  // the name does not resolve
  }
}

std::string numeric_address(const std::string& host) {
  const AddressList list = resolve(host);
  char text[NI_MAXHOST] = "";
  if (list) {
    getnameinfo(list->ai_addr, list->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  }
  return text;
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
