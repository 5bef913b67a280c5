#include "paceline/transport/addresses.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>

#include <fmt/ranges.h>

#include "paceline/core/check.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kPause = 1s;
// What is asked for at once; a store's reply has a limit.
constexpr std::size_t kBytesAtOnce = 4 << 20;

class Fetcher {
 public:
  Fetcher(const ConnectOptions& options, const std::string& own, Deadline deadline,
          const std::function<void()>& look_around)
      : options_(options),
        num_at_once_(std::max<std::size_t>(kBytesAtOnce / own.size(), 1)),
        deadline_(deadline),
        look_around_(look_around) {}

  std::vector<PeerAddress> run() {
    const auto count = static_cast<std::size_t>(options_.world_size);
    std::vector<int> ranks(count);
    std::iota(ranks.begin(), ranks.end(), 0);
    peers_.resize(count);
    for (std::span<const int> left = ranks; !left.empty();) {
      const auto some = left.first(std::min(left.size(), num_at_once_));
      fetch_all({some.begin(), some.end()});
      left = left.subspan(some.size());
    }
    return std::move(peers_);
  }

 private:
  // In pieces of time: a rank that gave up first does not publish anything.
  void fetch_all(std::vector<int> missing) {
    while (!take(missing, std::min(deadline_.remaining(), kPause))) {
      // What is there may say why the others do not come.
      std::erase_if(missing, [&](int rank) { return take({rank}, 0ns); });
      if (missing.empty()) return;
      look_around_();
      if (deadline_.expired()) {
        fail(ErrorCode::kTimeout, "rank {}: rank {} of group {} did not come within {} ms",
             options_.rank, missing.front(), options_.name, options_.timeout.count());
      }
    }
  }

  // False when some did not come in that time.
  bool take(const std::vector<int>& ranks, std::chrono::nanoseconds wait) {
    std::vector<std::string> values;
    try {
      values = options_.fetch(ranks, std::chrono::ceil<std::chrono::milliseconds>(wait));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kTimeout) return false;
      throw Error(error.code(), fmt::format("rank {}: the addresses of group {} did not come: {}",
                                            options_.rank, options_.name, error.what()));
    }
    for (std::size_t i = 0; i < ranks.size(); ++i) take(ranks[i], values.at(i));
    return true;
  }

  void take(int rank, const std::string& value) {
    PeerAddress& peer = peers_[static_cast<std::size_t>(rank)];
    peer = PeerAddress::decode(value);
    require_same_members(rank, peer);
    require_same_transport(rank, peer);
    require_same_encryption(rank, peer);
    peer.members = {};  // as many as there are ranks, for each of them
  }

  void require_same_members(int rank, const PeerAddress& peer) const {
    check(peer.members == options_.members,
          "rank {}: group {} does not match: this rank means the ranks {} of the world, {} means "
          "{}; all ranks must make the same groups in the same order",
          options_.rank, options_.name, fmt::join(options_.members, ", "),
          describe_peer(rank, peer), fmt::join(peer.members, ", "));
  }

  void require_same_transport(int rank, const PeerAddress& peer) const {
    check(peer.transport == options_.transport,
          "rank {}: {} of group {} chose transport {}, but this rank {}; give all ranks the same "
          "PACELINE_TRANSPORT",
          options_.rank, describe_peer(rank, peer), options_.name, name_of(peer.transport),
          name_of(options_.transport));
  }

  void require_same_encryption(int rank, const PeerAddress& peer) const {
    const bool encrypts = peer.cipher != CipherKind::kNone;
    check(encrypts == options_.encrypt,
          "rank {}: {} of group {} {}, but this rank {}; give all ranks --encrypt "
          "(PACELINE_ENCRYPT=1), or none",
          options_.rank, describe_peer(rank, peer), options_.name,
          encrypts ? "encrypts" : "does not encrypt", options_.encrypt ? "does" : "does not");
  }

  const ConnectOptions& options_;
  const std::size_t num_at_once_;
  const Deadline deadline_;
  const std::function<void()>& look_around_;
  std::vector<PeerAddress> peers_;
};

}  // namespace

std::string describe_peer(int rank, const PeerAddress& address) {
  return fmt::format("rank {} ({})", rank, address.host_name);
}

std::vector<PeerAddress> fetch_addresses(const ConnectOptions& options, const std::string& own,
                                         Deadline deadline,
                                         const std::function<void()>& look_around) {
  return Fetcher(options, own, deadline, look_around).run();
}

}  // namespace paceline
