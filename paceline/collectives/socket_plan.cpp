#include "paceline/collectives/socket_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "paceline/collectives/algorithms/by_socket.h"
#include "paceline/collectives/algorithms/subtrees.h"
#include "paceline/core/check.h"
#include "paceline/core/rank_name.h"

namespace paceline {
namespace {

// Two meetings more, and a pass more over memory that is near, must be worth it.
constexpr std::size_t kLeastBytes = 1 << 20;
constexpr const char* kVariable = "PACELINE_BY_SOCKET";

std::size_t buffer_bytes(const PlanRequest& request, const Hosts& sockets) {
  const std::size_t blocks = request.op == Op::kReduceScatter ? sockets.host_of.size() : 1;
  return blocks * request.count * size_of(request.dtype);
}

std::string megabytes(std::uint64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6);
}

}  // namespace

BySocket parse_by_socket(const std::string& name) {
  if (name == "auto") return BySocket::kAuto;
  if (name == "never") return BySocket::kNever;
  check(name == "always", "{}={}: it is auto, never or always", kVariable, name);
  return BySocket::kAlways;
}

std::string_view name_of(BySocket choice) {
  constexpr std::string_view kNames[] = {"auto", "never", "always"};
  return kNames[std::min<std::size_t>(static_cast<std::size_t>(choice), 2)];
}

SocketPlan::SocketPlan(const std::vector<int>& socket_of, BySocket choice,
                       const std::vector<int>& members)
    : sockets_(Hosts::from(socket_of)), choice_(choice), why_not_(why_not(socket_of, members)) {}

std::string SocketPlan::why_not(const std::vector<int>& socket_of,
                                const std::vector<int>& members) const {
  const auto unknown = std::find(socket_of.begin(), socket_of.end(), kUnknown);
  if (unknown != socket_of.end()) {
    const auto rank = static_cast<std::size_t>(unknown - socket_of.begin());
    const int in_world = members.empty() ? static_cast<int>(rank) : members[rank];
    return fmt::format("{} may run on several sockets, or its socket is not known",
                       rank_name(static_cast<int>(rank), in_world));
  }
  if (sockets_.size() == 1) return "all ranks are on one socket";
  if (ranks_of_equal_subtrees(subtrees_by_host(sockets_)) < 2) {
    return fmt::format(
        "the ranks are on {} sockets, but not as equal powers of two of neighbouring ranks",
        sockets_.size());
  }
  return "";
}

bool SocketPlan::chooses(const PlanRequest& request) const {
  if (!is_possible() || choice_ == BySocket::kNever || !serves_by_socket(request.op)) return false;
  if (choice_ == BySocket::kAlways) return true;
  const auto bytes = bytes_between_sockets(request.op, request.dtype, request.count, sockets_);
  return buffer_bytes(request, sockets_) >= kLeastBytes && 2 * bytes.by_socket <= bytes.direct;
}

std::string SocketPlan::explain(const PlanRequest& request) const {
  if (!serves_by_socket(request.op)) return "";
  if (!is_possible()) {
    const bool is_asked_for = choice_ == BySocket::kAlways;
    const bool has_several = sockets_.size() > 1;
    return is_asked_for || has_several ? fmt::format("not by socket: {}\n", why_not_) : "";
  }
  const auto bytes = bytes_between_sockets(request.op, request.dtype, request.count, sockets_);
  const char* choice = choice_ == BySocket::kAuto    ? "not measured on such a machine"
                       : choice_ == BySocket::kNever ? "never was asked for"
                                                     : "always was asked for";
  return fmt::format(
      "{} sockets of {} ranks: each {} its own ranks first; between sockets {} that way, {} "
      "directly ({}: {}=auto|never|always)\n",
      sockets_.size(), sockets_.members.front().size(),
      chooses(request) ? "adds up" : "does not add up", megabytes(bytes.by_socket),
      megabytes(bytes.direct), choice, kVariable);
}

}  // namespace paceline
