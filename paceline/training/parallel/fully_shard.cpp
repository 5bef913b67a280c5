#include "paceline/training/parallel/fully_shard.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/collectives/memory/one_copy.h"
#include "paceline/engine/core/check.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/optim/parameters/parameter_home.h"
#include "paceline/training/tensor/current_error.h"
#include "paceline/training/tensor/tensor_memory.h"

namespace paceline {

DistributedDataParallelOptions detail::sharded_options(optim::Optimizer& optimizer,
                                                       const FullyShardOptions& options) {
  check(options.stage >= 0 && options.stage <= 3,
        "fully_shard: unknown stage {}; choose 0 (divides nothing), 1 (the optimizer's state), 2 "
        "(also gradients) or 3 (also parameters)",
        options.stage);
  check(options.unit_bytes > 0, "fully_shard: units of 0 bytes");
  check(options.units.empty() || options.stage >= 2,
        "fully_shard: units divide gradients, which stage {} does not", options.stage);
  check(!options.shard_across_hosts || options.stage == 3,
        "fully_shard: shard_across_hosts needs stage 3; in stage {} each rank has all parameters",
        options.stage);
  DistributedDataParallelOptions all = options.data_parallel;
  if (options.stage == 0) return all;
  all.optimizer = &optimizer;
  all.shard = std::make_shared<const optim::ShardOptions>(
      optim::ShardOptions{.node_shared = options.stage == 3,
                          .unit_bytes = options.stage >= 2 ? options.unit_bytes : 0,
                          .units = options.units,
                          .shard_across_hosts = options.shard_across_hosts});
  return all;
}

namespace {

constexpr std::size_t kAlignment = 64;  // for vectorised kernels

struct Place {
  std::string name;
  at::Tensor tensor;
  std::size_t offset = 0;
};

// Assigns an offset to each parameter, once, in order.
std::vector<Place> place_parameters(const torch::nn::Module& module) {
  std::vector<Place> places;
  std::size_t offset = 0;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    const auto is_same = [&](const Place& known) { return known.tensor.is_same(tensor); };
    if (std::ranges::any_of(places, is_same)) continue;
    check(tensor.is_cpu() && tensor.is_non_overlapping_and_dense(),
          "parameter {} is not a dense tensor on the CPU", item.key());
    places.push_back({item.key(), tensor, offset});
    offset += (tensor.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  check(offset > 0, "the module has no parameters");
  return places;
}

// Returns a line for each parameter, followed by the total number of bytes. The text must be the
// same on every rank.
std::string describe(const std::vector<Place>& places) {
  std::string text;
  for (const auto& [name, tensor, offset] : places) {
    text += fmt::format("{}\t{}\t{} [{}], strides [{}]\n", offset, name,
                        c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                        fmt::join(tensor.strides(), ", "));
  }
  return text + std::to_string(places.back().offset + places.back().tensor.nbytes());
}

struct Described {
  std::size_t bytes = 0;
  std::vector<NamedRange> names;
};

Described read_description(const std::string& text) {
  Described described;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t tab = line.find('\t');
    described.bytes = std::stoull(line);
    if (tab == std::string::npos) break;
    const std::size_t end = line.find('\t', tab + 1);
    described.names.push_back(
        {described.bytes, "parameter " + line.substr(tab + 1, end - tab - 1)});
  }
  return described;
}

void require_same(const std::string& own, const std::string& other) {
  std::istringstream mine(own);
  std::istringstream theirs(other);
  std::string here;
  std::string there;
  while (std::getline(mine, here) && std::getline(theirs, there) && here == there) continue;
  check(own == other, "its parameters differ from those of the other ranks: '{}' and '{}'", here,
        there);
}

class Builder {
 public:
  explicit Builder(ProcessGroup& group) : group_(group) {
    const Hosts& hosts = group.hosts();
    if (hosts.size() == 1) return;
    const int rank = group.rank();
    own_host_ = group.split(hosts.host_of[static_cast<std::size_t>(rank)], rank);
    firsts_ = group.split(hosts.local_index(rank) == 0 ? 0 : -1, rank);
  }

  void build(const std::function<std::shared_ptr<torch::nn::Module>()>& make) {
    const bool is_first = host().rank() == 0;
    if (is_first) {
      take_turn([&] {
        auto places = place_parameters(*make());
        agree(describe(places));
        move(places);
      });
    } else {
      agree({});
    }
    for (int turn = 1; turn < host().world_size(); ++turn) {
      host().barrier();  // until the previous rank has dropped its own copy
      if (turn != host().rank()) continue;
      take_turn([&] {
        auto places = place_parameters(*make());
        require_same(describe(places), description_);
        move(places);
      });
    }
    group_.barrier();  // until all hosts are done
  }

 private:
  ProcessGroup& host() { return own_host_ ? *own_host_ : group_; }

  // Calls `turn`. If it throws, aborts the group, because the other ranks wait for this one.
  void take_turn(const std::function<void()>& turn) try { turn(); } catch (...) {
    const std::string reason =
        std::string("build_once could not build the module: ") + current_error().what();
    group_.abort(reason);
    fail(ErrorCode::kInvalid, "{}: {}", group_.self(), reason);
  }

  // Sends rank 0's description of the parameters to all ranks, and allocates the copy of each host.
  void agree(const std::string& own) {
    if (firsts_ && host().rank() == 0) require_same(own, broadcast_object(*firsts_, own, 0));
    description_ = broadcast_object(host(), own, 0);
    auto described = read_description(description_);
    copy_ = std::make_shared<OneCopy>(host(), described.bytes, std::move(described.names));
  }

  // Moves the parameters to the copy, which has the values of rank 0.
  void move(std::vector<Place>& places) {
    const bool is_first = host().rank() == 0;
    for (auto& [name, tensor, offset] : places) {
      if (is_first) std::memcpy(copy_->data() + offset, tensor.data_ptr(), tensor.nbytes());
      const auto copy = copy_;
      tensor.set_data(at::from_blob(
          copy->read_only() + offset, tensor.sizes(), tensor.strides(), [copy](void*) {},
          tensor.options().requires_grad(false)));
    }
    if (is_first && firsts_)
      firsts_->broadcast(Buffer(copy_->data(), copy_->bytes(), Dtype::kUint8), 0);
    SymmetricTensors::release_unused();
  }

  ProcessGroup& group_;
  std::shared_ptr<ProcessGroup> own_host_;  // null: the group is on one host
  std::shared_ptr<ProcessGroup> firsts_;    // the first rank of each host
  std::string description_;
  std::shared_ptr<const OneCopy> copy_;  // shared with the parameters
};

}  // namespace

void detail::build_in_turns(GroupRef group,
                            const std::function<std::shared_ptr<torch::nn::Module>()>& build) {
  if (group->world_size() == 1) {
    build();
    return;
  }
  Builder(group).build(build);
}

}  // namespace paceline
