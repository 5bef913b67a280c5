#include "paceline/training/parallel/replica_guard.h"

#include <algorithm>
#include <map>
#include <span>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {

namespace {

std::string describe(const NamedParameter& parameter) {
  const c10::Device device = parameter.tensor.device();
  return fmt::format(
      "{} {} [{}] strides [{}]{}{}", parameter.name, c10::toString(parameter.tensor.scalar_type()),
      fmt::join(parameter.tensor.sizes(), ", "), fmt::join(parameter.tensor.strides(), ", "),
      device.is_cpu() ? "" : " on " + c10::DeviceTypeName(device.type(), true),
      parameter.tensor.requires_grad() ? "" : " frozen");
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

void require_same_parameters(ProcessGroup& group, const std::vector<NamedParameter>& parameters) {
  std::string mine;
  for (const auto& parameter : parameters) mine += describe(parameter) + "\n";
  const auto texts = all_gather_object(group, mine);
  const auto first = split_lines(texts[0]);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const auto other = split_lines(texts[rank]);
    for (std::size_t i = 0; i < std::min(first.size(), other.size()); ++i) {
      check(first[i] == other[i],
            "{}: the ranks do not have the same model: parameter {} is '{}' on {} and "
            "'{}' on {}",
            group.self(), i, first[i], group.name_of_member(0), other[i],
            group.name_of_member(rank));
    }
    check(first.size() == other.size(),
          "{}: the ranks do not have the same model: {} has {} parameters, {} has {}", group.self(),
          group.name_of_member(0), first.size(), group.name_of_member(rank), other.size());
  }
}

c10::Device one_device_of(const std::vector<NamedParameter>& parameters, int rank) {
  const NamedParameter& first = parameters.front();
  const c10::Device device = first.tensor.device();
  for (const NamedParameter& parameter : parameters) {
    check(parameter.tensor.device() == device,
          "rank {}: parameter {} is on {} and parameter {} on {}; a replica must be on one device: "
          "call module->to(device) before it is wrapped",
          rank, first.name, device.str(), parameter.name, parameter.tensor.device().str());
  }
  require_device(device, fmt::format("rank {}: parameter {}", rank, first.name));
  return device;
}

namespace {

std::uint64_t hash_of_bytes(const at::Tensor& tensor) {
  return XXH3_64bits(tensor.data_ptr(), tensor.nbytes());
}

}  // namespace

void KeptTensors::note(const Named& tensors) {
  kept_.clear();
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.is_cpu() || !tensor.is_non_overlapping_and_dense() || tensor.numel() == 0) continue;
    kept_.push_back({name, tensor, WriteMark(tensor), hash_of_bytes(tensor)});
  }
}

void KeptTensors::verify(const char* what, const ProcessGroup& group, std::int64_t step) const {
  const bool is_unwritten =
      std::ranges::all_of(kept_, [](const Kept& kept) { return kept.mark.holds_for(kept.tensor); });
  if (!is_unwritten) return;
  for (const Kept& kept : kept_) {
    if (hash_of_bytes(kept.tensor) == kept.hash) continue;
    throw DamagedState(fmt::format(
        "{}: {} {} changed in memory after step {}; memory is failing or was overwritten, or "
        "the program wrote through data() or data_ptr(): continue from a checkpoint",
        group.self(), what, kept.name, step));
  }
}

void KeptTensors::verify_before_pass(const char* what, ProcessGroup& group, std::int64_t step) const
    try {
  verify(what, group, step);
} catch (const DamagedState& error) {
  group.abort(error.what());
  throw;
}

namespace {

// Finding a smaller part would take longer than hashing it.
constexpr std::size_t kMinPart = 16 << 10;

std::int64_t hash_of(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(XXH3_64bits(tensor.data_ptr(), tensor.nbytes()));
}

// Returns for each rank whether its hash differs from the majority's; true for all ranks if there
// is no majority.
std::vector<bool> odd_ones(std::span<const std::int64_t> hashes) {
  std::map<std::int64_t, std::size_t> count;
  for (const std::int64_t hash : hashes) ++count[hash];
  const auto most = std::max_element(
      count.begin(), count.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool is_majority = 2 * most->second > hashes.size();
  std::vector<bool> odd;
  for (const std::int64_t hash : hashes)
    odd.push_back(count.size() > 1 && (!is_majority || hash != most->first));
  return odd;
}

}  // namespace

void require_equal_replicas(ProcessGroup& group, std::vector<NamedParameter> parameters,
                            std::int64_t step) {
  if (group.world_size() == 1) return;
  std::erase_if(parameters, [](const auto& parameter) { return !parameter.tensor.is_cpu(); });
  const ReplicaGuard guard(std::move(parameters), 1);
  const std::vector<std::int64_t> own = {static_cast<std::int64_t>(guard.hash_all())};
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.world_size()));
  group.all_gather(std::span(all), std::span(own));
  const auto is_own = [&](std::int64_t hash) { return hash == own.front(); };
  if (!std::all_of(all.begin(), all.end(), is_own)) guard.report(group, step);
}

void require_distinct_names(ProcessGroup& group, const std::vector<NamedParameter>& parameters) {
  std::string own;  // a line for each: the name, a tab, the shape and the hash
  for (const auto& [name, tensor] : parameters) {
    const std::int64_t hash = tensor.is_cpu() ? hash_of(tensor.contiguous()) : 0;
    own += fmt::format("{}\t{} {}\n", name, fmt::join(tensor.sizes(), "x"), hash);
  }
  const auto all = all_gather_object(group, own);
  std::map<std::string, std::pair<std::string, std::size_t>> known;  // content and rank, by name
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::istringstream lines(all[rank]);
    for (std::string name, content;
         std::getline(lines, name, '\t') && std::getline(lines, content);) {
      const auto& [first, is_new] = known.try_emplace(name, content, rank);
      check(is_new || first->second.first == content,
            "{}: checkpoint: ranks {} and {} have different parameters named {}: the parts of a "
            "divided model need different names, for example blocks->push_back(\"block3\", "
            "module) or register_module(\"stage1\", stage)",
            group.self(), first->second.second, rank, name);
    }
  }
}

ReplicaGuard::ReplicaGuard(std::vector<NamedParameter> parameters, std::int64_t passes)
    : parameters_(std::move(parameters)) {
  for (const auto& parameter : parameters_) num_bytes_ += parameter.tensor.nbytes();
  check(passes >= 1, "replicas cannot be compared within {} passes; choose at least 1", passes);
  const auto num_parts = static_cast<std::size_t>(passes);
  part_bytes_ = std::max((num_bytes_ + num_parts - 1) / num_parts, kMinPart);
}

std::uint64_t ReplicaGuard::hash_part(std::int64_t pass) const {
  if (num_bytes_ == 0) return 0;
  const std::size_t num_parts = (num_bytes_ + part_bytes_ - 1) / part_bytes_;
  const std::size_t begin = static_cast<std::size_t>(pass) % num_parts * part_bytes_;
  return hash(begin, std::min(begin + part_bytes_, num_bytes_));
}

std::uint64_t ReplicaGuard::hash_all() const { return hash(0, num_bytes_); }

std::uint64_t ReplicaGuard::hash(std::size_t begin, std::size_t end) const {
  std::uint64_t result = 0;
  std::size_t tensor_begin = 0;
  for (const auto& parameter : parameters_) {
    const std::size_t tensor_end = tensor_begin + parameter.tensor.nbytes();
    const std::size_t from = std::max(begin, tensor_begin), to = std::min(end, tensor_end);
    if (from < to) {
      const auto* const bytes = static_cast<const std::byte*>(parameter.tensor.data_ptr());
      result = XXH3_64bits_withSeed(bytes + (from - tensor_begin), to - from, result);
    }
    tensor_begin = tensor_end;
  }
  return result;
}

void ReplicaGuard::report(ProcessGroup& group, std::int64_t step) const {
  const auto world = static_cast<std::size_t>(group.world_size());
  std::vector<std::int64_t> own;
  for (const auto& parameter : parameters_) own.push_back(hash_of(parameter.tensor));
  std::vector<std::int64_t> all(own.size() * world);
  group.all_gather(std::span(all), std::span(own));
  std::vector<std::size_t> ranks;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::vector<std::int64_t> hashes;
    for (std::size_t rank = 0; rank < world; ++rank) hashes.push_back(all[rank * own.size() + i]);
    const std::vector<bool> odd = odd_ones(hashes);
    if (std::none_of(odd.begin(), odd.end(), [](bool is_odd) { return is_odd; })) continue;
    names.push_back(parameters_[i].name);
    for (std::size_t rank = 0; rank < world; ++rank) {
      if (odd[rank] && std::find(ranks.begin(), ranks.end(), rank) == ranks.end())
        ranks.push_back(rank);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  constexpr std::size_t kMaxNames = 5;
  const std::size_t num_more = names.size() - std::min(names.size(), kMaxNames);
  names.resize(names.size() - num_more);
  const std::string what = fmt::format("{}{}", fmt::join(names, ", "),
                                       num_more > 0 ? fmt::format(" and {} more", num_more) : "");
  const std::string who =
      ranks.size() == 1
          ? fmt::format("{}'s replica differs from the others", group.name_of_member(ranks.front()))
          : fmt::format("the replicas of ranks {} differ", fmt::join(ranks, " and "));
  throw DamagedState(
      fmt::format("{}: {} after step {}: {}. Their memory was damaged, or a rank took a different "
                  "step (it left out a backward pass, changed its parameters alone, or has other "
                  "threads, processor, code or random numbers); nothing was saved since. Continue "
                  "from the last checkpoint",
                  group.self(), who, step, names.empty() ? "no tensor differs any more" : what));
}

}  // namespace paceline
