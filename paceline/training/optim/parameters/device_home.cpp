#include "paceline/training/optim/parameters/device_home.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/training/device/device_memory.h"
#include "paceline/training/optim/parameters/device_parameters.h"

namespace paceline::optim {

namespace {

// The pool has room for the two largest units, so that one arrives while the other is used, and for
// four units of `unit_bytes`; or for all units.
std::size_t pool_bytes(std::vector<std::size_t> units, std::size_t unit_bytes) {
  constexpr std::size_t kLarge = 2, kSmall = 4;
  for (std::size_t& bytes : units) bytes = RangePool::rounded(bytes);
  std::ranges::sort(units, std::greater());
  const auto all = std::accumulate(units.begin(), units.end(), std::size_t{0});
  units.resize(std::min(units.size(), kLarge));
  return std::min(all, std::accumulate(units.begin(), units.end(), kSmall * unit_bytes));
}

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

std::unique_ptr<ParameterHome> make_device_home(const ParameterRows& rows,
                                                std::shared_ptr<ProcessGroup> group,
                                                const ShardOptions& options) {
  return std::make_unique<DeviceHome>(rows, std::move(group), options);
}

}  // namespace paceline::optim
