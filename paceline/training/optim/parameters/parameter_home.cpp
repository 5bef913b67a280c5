#include "paceline/training/optim/parameters/parameter_home.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/memory/one_copy.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/error.h"
#include "paceline/training/device/device_memory.h"
#include "paceline/training/optim/parameters/device_parameters.h"
#include "paceline/training/optim/parameters/divided_parameters.h"
#include "paceline/training/tensor/collectives.h"

namespace paceline::optim {

std::byte* ParameterHome::to_write(std::size_t parameter) const {
  return static_cast<std::byte*>(rows_.parameters()[parameter].data_ptr());
}

at::Tensor ParameterHome::elements(std::size_t parameter, Run run) const {
  const at::Tensor whole = rows_.parameters()[parameter].detach();
  return whole.as_strided({whole.numel()}, {1}).narrow(0, run.first, run.second - run.first);
}

std::uint32_t ParameterHome::sum_of_elements(std::size_t parameter, Run elements) const {
  const auto [first, last] = elements;
  if (first >= last) return 0;
  const Dtype type = to_dtype(rows_.row_of(parameter).type);
  return sum_of(type, to_write(parameter) + static_cast<std::size_t>(first) * size_of(type),
                last - first);
}

std::vector<ParameterHome::Run> ParameterHome::all_of(std::size_t parameter) const {
  return {{0, rows_.parameters()[parameter].numel()}};
}

std::string parameter_name(const std::vector<std::string>& names, std::size_t parameter) {
  return "parameter " + (names.empty() ? std::to_string(parameter) : names[parameter]);
}

at::Tensor part_of(const at::Tensor& flat, const ParameterRows::Row& row, int part) {
  return flat.narrow(0, row.layout.part_count() * part, row.layout.part_count());
}

void ParameterHome::note_places(const std::vector<std::string>& names) {
  places_.clear();
  for (std::size_t i = 0; i < rows_.parameters().size(); ++i)
    places_.push_back(
        {rows_.parameters()[i].storage().unsafeGetStorageImpl(), parameter_name(names, i)});
}

void ParameterHome::require_in_place() const {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (rows_.parameters()[i].storage().unsafeGetStorageImpl() == places_[i].storage) continue;
    const Error error(
        ErrorCode::kInvalid,
        fmt::format(
            "{}: {} was given other memory after fully_shard(), by torch::load(), set_data() or a "
            "similar call, so the ranks no longer share it: load into the module before "
            "fully_shard(), or use copy_() while optimizer.writable_parameters() is held",
            group_->self(), places_[i].name));
    group_->abort(error.what());  // the others would wait for this rank
    throw error;
  }
}

namespace {

using Row = ParameterRows::Row;

void move_to(const Row& row, const at::Tensor& flat, bool copies) {
  for (std::size_t index = 0; index < row.tensors.size(); ++index) {
    const at::Tensor place = row.layout.place(flat, index, row.tensors[index]);
    if (copies) place.copy_(row.tensors[index]);
    row.tensors[index].set_data(place);
  }
}

// Parameters in symmetric memory, or in the memory of a CUDA device: every rank has all of them,
// and gets the parts that other ranks update.
class SymmetricHome : public ParameterHome {
 public:
  SymmetricHome(const ParameterRows& rows, std::shared_ptr<ProcessGroup> group,
                const std::vector<std::string>& names)
      : ParameterHome(rows, std::move(group)) {
    for (const Row& row : rows_.rows()) {
      flats_.push_back(make_flat(row));
      move_to(row, flats_.back(), true);
    }
    note_places(names);
  }

  void after_update() override {
    std::vector<WorkPtr> works;  // only on a device
    for (std::size_t i = 0; i < flats_.size(); ++i) {
      const at::Tensor own = part_of(flats_[i], rows_.rows()[i], group_->rank());
      if (!own.is_cpu()) {
        works.push_back(all_gather_into_tensor(*group_, flats_[i], own, {.async_op = true}));
        continue;
      }
      group_->all_gather(dense_cpu_view(flats_[i]), dense_cpu_view(own));
    }
    for (const WorkPtr& work : works) work->wait();
  }

  std::uint32_t sum_of_other_parts(std::size_t parameter) const override {
    const std::int64_t count = rows_.parameters()[parameter].numel();
    const auto [first, last] = rows_.own_elements(parameter);
    if (first >= last) return sum_of_elements(parameter, {0, count});
    return sum_of_elements(parameter, {0, first}) + sum_of_elements(parameter, {last, count});
  }

 private:
  at::Tensor make_flat(const Row& row) const {
    const c10::Device device = row.tensors.front().device();
    if (device.is_cpu()) return empty_symmetric(*group_, {row.layout.count()}, row.type);
    return at::zeros({row.layout.count()}, at::TensorOptions(row.type).device(device));
  }

  std::vector<at::Tensor> flats_;  // [row]
};

// How the ranks of the group are distributed over hosts.
struct HostSplit {
  std::shared_ptr<ProcessGroup> host;   // the ranks that share a copy
  std::shared_ptr<ProcessGroup> peers;  // the ranks with the same local rank; null: one host
  std::vector<int> peer_ranks;  // ranks of the peers in the whole group, in the order of hosts
};

HostSplit split_by_host(const std::shared_ptr<ProcessGroup>& group) {
  const Hosts hosts = group->hosts();
  const int self = group->rank();
  const auto host = static_cast<std::size_t>(hosts.host_of[static_cast<std::size_t>(self)]);
  const auto& mine = hosts.members[host];
  for (const auto& members : hosts.members) {
    if (members.size() == mine.size()) continue;
    fail(ErrorCode::kUnsupported,
         "rank {}: one copy of the parameters per host needs the same number of ranks on each: "
         "there are {} and {}",
         self, mine.size(), members.size());
  }
  const auto number = std::ranges::find(mine, self) - mine.begin();
  HostSplit split{group, nullptr, {}};
  for (const auto& members : hosts.members)
    split.peer_ranks.push_back(members[static_cast<std::size_t>(number)]);
  if (hosts.members.size() == 1) return split;
  split.host = group->split(static_cast<int>(host), self);
  split.peers = group->split(static_cast<int>(number), static_cast<int>(host));
  return split;
}

// One copy per host: all ranks of a host read the same memory, and each writes its part there. A
// rank also writes the parts that its peers on the other hosts update.
class OneCopyHome : public ParameterHome {
 public:
  OneCopyHome(const ParameterRows& rows, std::shared_ptr<ProcessGroup> group, HostSplit split,
              const std::vector<std::string>& names)
      : OneCopyHome(rows, std::move(group), split, split.peer_ranks, names) {}

  bool shares_parameters() const override { return true; }

  std::byte* to_write(std::size_t parameter) const override {
    const at::Tensor& flat = flats_[rows_.row_number(parameter)];
    return static_cast<std::byte*>(flat.data_ptr()) +
           static_cast<std::size_t>(rows_.offset(parameter)) * flat.itemsize();
  }

  at::Tensor elements(std::size_t parameter, Run run) const override {
    const std::int64_t begin = rows_.offset(parameter) + run.first;
    return flats_[rows_.row_number(parameter)].narrow(0, begin, run.second - run.first);
  }

  // The barriers ensure that every rank of the host has read the old values before any rank writes,
  // and that every rank has written before any rank reads the new values.
  void before_update() override { split_.host->barrier(); }
  void after_update() override {
    if (kept_parts_.size() > 1) exchange_hosts();
    split_.host->barrier();
  }

  // Returns the checksum over the parts that this rank gets from other hosts.
  std::uint32_t sum_of_other_parts(std::size_t parameter) const override {
    std::uint32_t sum = 0;
    for (const int part : kept_parts_) {
      if (part != group_->rank())
        sum += sum_of_elements(parameter, rows_.elements_in(parameter, part));
    }
    return sum;
  }

  std::vector<Run> to_load(std::size_t parameter) const override {
    std::vector<Run> runs;
    for (const int part : kept_parts_) {
      const Run run = rows_.elements_in(parameter, part);
      if (run.first < run.second) runs.push_back(run);
    }
    return runs;
  }

  // The permission to write ends before the units are dropped, and the memory outlives both.
  std::shared_ptr<void> writable() const override {
    auto whole = this->whole();
    auto writing = std::make_shared<OneCopy::Writing>(*copy_);
    return {writing.get(), [copy = copy_, whole, writing](void*) mutable {
              writing.reset();
              whole.reset();
            }};
  }

 protected:
  // `kept_parts`: the parts that this rank fills, in this constructor and in each step, so that
  // their pages are on its own NUMA node.
  OneCopyHome(const ParameterRows& rows, std::shared_ptr<ProcessGroup> group, HostSplit split,
              std::vector<int> kept_parts, const std::vector<std::string>& names)
      : ParameterHome(rows, std::move(group)),
        split_(std::move(split)),
        kept_parts_(std::move(kept_parts)) {
    constexpr std::size_t kPage = 4096;
    std::vector<NamedRange> ranges;
    std::size_t bytes = 0;
    for (const Row& row : rows_.rows()) {
      begins_.push_back(bytes);
      const std::size_t element = at::elementSize(row.type);
      for (const std::size_t i : row.parameters) {
        const auto offset = static_cast<std::size_t>(rows_.offset(i)) * element;
        ranges.push_back({bytes + offset, parameter_name(names, i)});
      }
      bytes += (static_cast<std::size_t>(row.layout.count()) * element + kPage - 1) / kPage * kPage;
    }
    std::optional<std::size_t> used;
    const std::size_t num_hosts = split_.peer_ranks.size();
    if (kept_parts_.size() < num_hosts) used = bytes / num_hosts;
    const auto copy = std::make_shared<OneCopy>(*split_.host, bytes, std::move(ranges), used);
    copy_ = copy;
    for (std::size_t i = 0; i < rows_.rows().size(); ++i) {
      const Row& row = rows_.rows()[i];
      const auto view = [&](std::byte* begin) {
        return at::from_blob(
            begin + begins_[i], {row.layout.count()}, [copy](void*) {}, row.type);
      };
      flats_.push_back(view(copy->data()));
      for (const std::size_t parameter : row.parameters) fill(parameter);
      move_to(row, view(copy->read_only()), false);
    }
    note_places(names);
    split_.host->barrier();
  }

  HostSplit split_;
  const std::vector<int> kept_parts_;
  std::shared_ptr<const OneCopy> copy_;  // shared with the parameters
  std::vector<std::size_t> begins_;      // [row]: its first byte in the copy

 private:
  void fill(std::size_t parameter) const {
    const at::Tensor& given = rows_.parameters()[parameter];
    for (const auto& [first, last] : to_load(parameter)) {
      const auto begin = static_cast<std::size_t>(first) * given.itemsize();
      std::memcpy(to_write(parameter) + begin,
                  static_cast<const std::byte*>(given.data_ptr()) + begin,
                  static_cast<std::size_t>(last - first) * given.itemsize());
    }
  }

  void exchange_hosts() {
    for (std::size_t i = 0; i < flats_.size(); ++i) {
      const Row& row = rows_.rows()[i];
      const std::int64_t count = row.layout.part_count();
      const at::Tensor parts = at::empty({split_.peers->world_size() * count}, row.type);
      split_.peers->all_gather(dense_cpu_view(parts),
                               dense_cpu_view(part_of(flats_[i], row, group_->rank())));
      for (std::size_t host = 0; host < kept_parts_.size(); ++host) {
        if (kept_parts_[host] == group_->rank()) continue;
        part_of(flats_[i], row, kept_parts_[host])
            .copy_(part_of(parts, row, static_cast<int>(host)));
      }
    }
  }

  std::vector<at::Tensor> flats_;  // [row]: the tensor to which steps write
};

// A part of the copy on each host: a host keeps the parts of its ranks, and has the whole of a unit
// only while operations read it.
class HostPartsHome : public OneCopyHome {
 public:
  HostPartsHome(const ParameterRows& rows, std::shared_ptr<ProcessGroup> group, HostSplit split,
                const std::vector<std::string>& names)
      : OneCopyHome(rows, group, std::move(split), {group->rank()}, names) {
    std::vector<DividedParameters::Unit> units;
    for (std::size_t i = 0; i < rows_.rows().size(); ++i) {
      const Row& row = rows_.rows()[i];
      const auto part = static_cast<std::size_t>(row.layout.part_count());
      units.push_back({begins_[i], part * at::elementSize(row.type), {}, {}});
      for (const at::Tensor& tensor : row.tensors)
        units.back().storages.push_back(tensor.storage());
      units.back().name = parameter_name(names, row.parameters.front());
    }
    parts_ = std::make_shared<DividedParameters>(copy_, split_.host, split_.peers,
                                                 split_.peer_ranks, units);
  }

  bool divides_parameters() const override { return true; }
  std::vector<Run> to_save(std::size_t parameter) const override { return to_load(parameter); }
  std::shared_ptr<void> whole() const override { return parts_->whole(); }
  void require() const override { parts_->require_whole(); }
  void forget_others() override { parts_->forget(); }
  double take_fetch_seconds() override { return parts_->take_exposed_seconds(); }

 private:
  std::shared_ptr<DividedParameters> parts_;  // shared with the results of whole()
};

// The pool has room for the two largest units, so that one arrives while the other is used, and for
// four units of `unit_bytes`; or only for all units, if that is less.
std::size_t pool_bytes(std::vector<std::size_t> units, std::size_t unit_bytes) {
  constexpr std::size_t kLarge = 2, kSmall = 4;
  for (std::size_t& bytes : units) bytes = RangePool::rounded(bytes);
  std::ranges::sort(units, std::greater());
  const auto all = std::accumulate(units.begin(), units.end(), std::size_t{0});
  units.resize(std::min(units.size(), kLarge));
  return std::min(all, std::accumulate(units.begin(), units.end(), kSmall * unit_bytes));
}

// Parameters divided among CUDA devices: each rank stores only the part that its steps update, and
// units are whole only while operations read them (device_parameters.h).
class DeviceHome : public ParameterHome {
 public:
  DeviceHome(const ParameterRows& rows, std::shared_ptr<ProcessGroup> group,
             const ShardOptions& options)
      : ParameterHome(rows, std::move(group)) {
    std::vector<DeviceParameters::Unit> units;
    std::vector<std::size_t> bytes;
    for (const ParameterRows::Row& row : rows_.rows()) {
      units.push_back(move(row, options.names));
      bytes.push_back(static_cast<std::size_t>(row.layout.count()) * at::elementSize(row.type));
    }
    note_places(options.names);
    const at::Tensor block =
        zeros_for_gathers(*group_, units.front().own.device(),
                          RangePool::rounded(pool_bytes(std::move(bytes), options.unit_bytes)),
                          "the pool of gathered parameters");
    // Gathers are in a group of their own, so that they do not wait for reductions of gradients.
    divided_ = std::make_shared<DeviceParameters>(group_->split(0, group_->rank()),
                                                  std::move(units), block);
  }

  bool shares_parameters() const override { return true; }
  bool divides_parameters() const override { return true; }
  at::Tensor elements(std::size_t parameter, Run run) const override {
    const auto [first, last] = run;
    const at::Tensor& own = parts_[rows_.row_number(parameter)];
    if (first >= last) return own.narrow(0, 0, 0);
    const std::int64_t begin = rows_.offset(parameter) - own.numel() * group_->rank();
    return own.narrow(0, begin + first, last - first);
  }
  std::vector<Run> to_load(std::size_t parameter) const override {
    const Run own = rows_.own_elements(parameter);
    return own.first < own.second ? std::vector{own} : std::vector<Run>();
  }
  std::vector<Run> to_save(std::size_t parameter) const override { return to_load(parameter); }
  std::shared_ptr<void> whole() const override { return divided_->whole(); }
  std::shared_ptr<void> writable() const override {
    auto whole = divided_->whole();
    void* const held = whole.get();
    return {held, [divided = divided_, whole = std::move(whole)](void*) mutable {
              divided->keep_writes();
              whole.reset();
            }};
  }
  void require() const override { divided_->require_whole(); }
  void forget_others() override { divided_->forget(); }

 private:
  // Gives the parameters of a row new storages, and copies this rank's part of the row.
  DeviceParameters::Unit move(const ParameterRows::Row& row,
                              const std::vector<std::string>& names) {
    constexpr const char* kCure = "use more ranks, or a smaller model";
    const c10::Device device = row.tensors.front().device();
    const at::Tensor flat = zeros_on_device(*group_, row.layout.count(), row.type, device,
                                            "a unit of parameters", kCure);
    parts_.push_back(zeros_on_device(*group_, row.layout.part_count(), row.type, device,
                                     "this rank's part of the parameters", kCure));
    DeviceParameters::Unit unit{parts_.back(), row.tensors, {}, {}};
    unit.name = parameter_name(names, row.parameters.front());
    for (std::size_t index = 0; index < row.tensors.size(); ++index) {
      const at::Tensor place = row.layout.place(flat, index, row.tensors[index]);
      place.copy_(row.tensors[index]);
      row.tensors[index].set_data(place);
      unit.offsets.push_back(static_cast<std::size_t>(row.layout.offset(index)) * flat.itemsize());
    }
    parts_.back().copy_(part_of(flat, row, group_->rank()));
    for (const at::Tensor& parameter : row.tensors) set_address(parameter, nullptr);
    return unit;
  }

  std::vector<at::Tensor> parts_;              // [row]: this rank's part
  std::shared_ptr<DeviceParameters> divided_;  // shared with the results of whole()
};

}  // namespace

std::unique_ptr<ParameterHome> make_shared_home(const ParameterRows& rows,
                                                std::shared_ptr<ProcessGroup> group,
                                                const ShardOptions& options) {
  if (!options.node_shared)
    return std::make_unique<SymmetricHome>(rows, std::move(group), options.names);
  if (!rows.parameters().front().is_cpu())
    return std::make_unique<DeviceHome>(rows, std::move(group), options);
  HostSplit split = split_by_host(group);
  if (options.shard_across_hosts && split.peers)
    return std::make_unique<HostPartsHome>(rows, std::move(group), std::move(split), options.names);
  return std::make_unique<OneCopyHome>(rows, std::move(group), std::move(split), options.names);
}

}  // namespace paceline::optim
