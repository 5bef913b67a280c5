// How an Optimizer is divided among ranks (optimizer.h).

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_set>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/optim/divided_parameters.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_memory.h"

namespace paceline::optim {
namespace {

// For who is given parameters alone and would take a gradient that is elsewhere for none.
struct Divided {
  std::mutex mutex;  // guards `parameters`
  std::unordered_set<const void*> parameters;
};

Divided& divided() {
  static auto* const of_process = new Divided;  // outlives every optimizer
  return *of_process;
}

}  // namespace

Optimizer::~Optimizer() {
  if (!shards_gradients_) return;
  const std::lock_guard lock(divided().mutex);
  for (const auto& parameter : parameters_)
    divided().parameters.erase(parameter.unsafeGetTensorImpl());
}

bool Optimizer::divides_gradient_of(const c10::TensorImpl* parameter) {
  const std::lock_guard lock(divided().mutex);
  return divided().parameters.contains(parameter);
}

void Optimizer::shard(std::shared_ptr<ProcessGroup> group, const ShardOptions& options) {
  check(!group_ && !has_stepped(), "{}: an optimizer is sharded once, before its first step",
        group->self());
  check(options.names.empty() || options.names.size() == parameters_.size(),
        "{}: {} names were given for {} parameters", group->self(), options.names.size(),
        parameters_.size());
  const auto rows = options.unit_bytes > 0
                        ? plan_units(parameters_, options.unit_bytes, options.units)
                        : rows_by_type(parameters_);
  if (group->world_size() == 1) return;
  group_ = std::move(group);
  const at::NoGradGuard no_grad;
  shards_gradients_ = options.unit_bytes > 0;
  if (shards_gradients_) {
    const std::lock_guard lock(divided().mutex);
    for (const auto& parameter : parameters_)
      divided().parameters.insert(parameter.unsafeGetTensorImpl());
    for (const auto& parameter : parameters_) guard_divided_gradient(parameter);
  }
  make_rows(rows);
  check(!options.divide_hosts || (options.one_copy && shards_gradients_),
        "{}: hosts divide parameters of which each has one copy, in units of gradients: set "
        "one_copy and unit_bytes too",
        group_->self());
  if (options.one_copy) make_one_copy(options);
  for (Row& row : rows_) {
    if (copy_) break;
    row.flat = empty_symmetric(*group_, {row.layout.count()}, row.type);
    for (std::size_t index = 0; index < row.tensors.size(); ++index) {
      const at::Tensor place = row.layout.place(row.flat, index, row.tensors[index]);
      place.copy_(row.tensors[index]);
      row.tensors[index].set_data(place);
    }
  }
  SymmetricTensors::release_unused();  // of what the parameters lay in
}

// The ranks that share a copy, and those with which this one exchanges what hosts have updated: one
// of each host.
void Optimizer::split_by_host() {
  const Hosts hosts = group_->hosts();
  const int self = group_->rank();
  const auto host = static_cast<std::size_t>(hosts.host_of[static_cast<std::size_t>(self)]);
  const auto& mine = hosts.members[host];
  for (const auto& members : hosts.members) {
    if (members.size() == mine.size()) continue;
    fail(ErrorCode::kUnsupported,
         "rank {}: one copy of the parameters a host needs as many ranks on each: there are {} and "
         "{}",
         self, mine.size(), members.size());
  }
  const auto number = std::ranges::find(mine, self) - mine.begin();
  peer_ranks_.clear();
  for (const auto& members : hosts.members)
    peer_ranks_.push_back(members[static_cast<std::size_t>(number)]);
  if (hosts.members.size() == 1) {
    host_ = group_;
    return;
  }
  host_ = group_->split(static_cast<int>(host), self);
  peers_ = group_->split(static_cast<int>(number), static_cast<int>(host));
}

// Each rank fills in its part, so that these pages are of its own NUMA node, and its peers' parts.
void Optimizer::make_one_copy(const ShardOptions& options) {
  split_by_host();
  const auto& names = options.names;
  const bool divides = options.divide_hosts && peers_;
  constexpr std::size_t kPage = 4096;
  std::vector<std::size_t> offsets;
  std::vector<NamedRange> ranges;
  std::size_t bytes = 0;
  for (const Row& row : rows_) {
    offsets.push_back(bytes);
    const std::size_t element = at::elementSize(row.type);
    for (std::size_t index = 0; index < row.parameters.size(); ++index) {
      const std::size_t i = row.parameters[index];
      const auto offset = static_cast<std::size_t>(row.layout.offset(index)) * element;
      ranges.push_back(
          {bytes + offset, "parameter " + (names.empty() ? std::to_string(i) : names[i])});
    }
    bytes += (static_cast<std::size_t>(row.layout.count()) * element + kPage - 1) / kPage * kPage;
  }
  std::optional<std::size_t> used;
  if (divides) used = bytes / peer_ranks_.size();
  const auto copy = std::make_shared<OneCopy>(*host_, bytes, std::move(ranges), used);
  copy_ = copy;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    Row& row = rows_[i];
    const auto view = [&](std::byte* begin) {
      return at::from_blob(
          begin + offsets[i], {row.layout.count()}, [copy](void*) {}, row.type);
    };
    row.flat = view(copy->data());
    for (const std::size_t parameter : row.parameters) {
      for (const int part : peer_ranks_) {
        if (divides && part != group_->rank()) continue;
        const auto [first, last] = elements_in(parameter, part);
        if (first >= last) continue;
        const std::size_t element = at::elementSize(row.type);
        const auto begin = static_cast<std::size_t>(first) * element;
        std::memcpy(parameter_to_write(parameter) + begin,
                    static_cast<const std::byte*>(parameters_[parameter].data_ptr()) + begin,
                    static_cast<std::size_t>(last - first) * element);
      }
    }
    const at::Tensor seen = view(copy->read_only());
    for (std::size_t index = 0; index < row.tensors.size(); ++index)
      row.tensors[index].set_data(row.layout.place(seen, index, row.tensors[index]));
  }
  host_->barrier();
  if (divides) divide_between_hosts(offsets, names);
}

void Optimizer::divide_between_hosts(const std::vector<std::size_t>& offsets,
                                     const std::vector<std::string>& names) {
  std::vector<DividedParameters::Unit> units;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const auto part = static_cast<std::size_t>(rows_[i].layout.part_count());
    units.push_back({offsets[i], part * at::elementSize(rows_[i].type), {}, {}});
    for (const at::Tensor& tensor : rows_[i].tensors)
      units.back().parameters.push_back(tensor.data_ptr());
    const std::size_t first = rows_[i].parameters.front();
    units.back().name = "parameter " + (names.empty() ? std::to_string(first) : names[first]);
  }
  host_parts_ = std::make_shared<DividedParameters>(copy_, host_, peers_, peer_ranks_, units);
}

std::shared_ptr<void> Optimizer::writable_parameters() const {
  auto whole = whole_parameters();
  auto writing = copy_ ? std::make_shared<OneCopy::Writing>(*copy_) : nullptr;
  // The next step takes the parameters as they are then. The writing ends before the units leave,
  // and the memory outlives both.
  return {marks_.get(), [copy = copy_, whole, writing, marks = marks_](void*) mutable {
            std::ranges::fill(*marks, WriteMark());
            writing.reset();
            whole.reset();
          }};
}

std::shared_ptr<void> Optimizer::whole_parameters() const {
  return host_parts_ ? host_parts_->whole() : nullptr;
}

void Optimizer::require_parameters() const {
  if (host_parts_) host_parts_->require_whole();
}

double Optimizer::take_exposed_seconds() {
  const double fetching = host_parts_ ? host_parts_->take_exposed_seconds() : 0;
  return std::exchange(exposed_seconds_, 0.0) + fetching;
}

// Element 0, in the order of its memory.
std::byte* Optimizer::parameter_to_write(std::size_t parameter) const {
  if (!copy_) return static_cast<std::byte*>(parameters_[parameter].data_ptr());
  const Row& row = row_of(parameter);
  return static_cast<std::byte*>(row.flat.data_ptr()) +
         static_cast<std::size_t>(row.layout.offset(places_[parameter].index)) *
             row.flat.itemsize();
}

}  // namespace paceline::optim
