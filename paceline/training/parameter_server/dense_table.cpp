#include "paceline/training/parameter_server/dense_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/optim_kernels/kernels.h"
#include "paceline/engine/store/store.h"

namespace paceline::tables {

namespace {

std::int64_t num_elements_of(const std::vector<at::Tensor>& parameters) {
  std::int64_t elements = 0;
  for (const at::Tensor& parameter : parameters) elements += parameter.numel();
  return elements;
}

RowOptions row_options(const std::string& name, const std::vector<at::Tensor>& parameters,
                       const DenseOptions& options) {
  check(!parameters.empty(), "dense table '{}': there are no parameters", name);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    check(parameter.is_cpu() && parameter.scalar_type() == at::kFloat,
          "dense table '{}': parameter {} is {}, but a table holds float32 on the CPU", name, i,
          parameter.toString());
    for (std::size_t j = 0; j < i; ++j)
      check(!parameter.is_same(parameters[j]),
            "dense table '{}': parameters {} and {} are the same tensor; list it once", name, j, i);
  }
  check(!std::holds_alternative<RowAdagrad>(options.optimizer),
        "dense table '{}': the steps of RowAdagrad depend on the blocks; use SGD, Adam or Adagrad",
        name);
  check(options.block > 0, "dense table '{}': the block must have at least 1 element", name);
  const std::int64_t elements = num_elements_of(parameters);
  return {.width = options.block,
          .optimizer = options.optimizer,
          .consistency = options.consistency,
          .capacity = static_cast<std::uint64_t>(elements / options.block + 1),
          .initial_range = 0};
}

}  // namespace

std::span<float> DenseTable::values() {
  return {values_.data_ptr<float>(), static_cast<std::size_t>(values_.numel())};
}

void DenseTable::require_memory(const char* operation) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    check(parameters_[i].data_ptr() == values_.data_ptr<float>() + begins_[i],
          "{}: dense table: parameter {} has got other memory since the table was opened, for "
          "example by Module::to(); open the table after such changes",
          operation, i);
}

// Makes autograd refuse a backward pass whose forward pass used other values.
void DenseTable::parameters_changed() {
  for (const at::Tensor& parameter : parameters_) torch::autograd::impl::bump_version(parameter);
}

void DenseTable::pull() {
  require_memory("pull");
  parameters_changed();
  rows_->pull(blocks_, values());
}

std::uint64_t DenseTable::pull_snapshot() {
  require_memory("pull_snapshot");
  const TableSnapshot snapshot = rows_->snapshot();
  parameters_changed();
  snapshot.pull(blocks_, values());
  return snapshot.version();
}

void DenseTable::push() {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) {
    const at::Tensor& gradient = parameter.grad();
    at::Tensor dense = gradient.defined() && gradient.is_sparse() ? gradient.to_dense() : gradient;
    gradients.push_back(dense.defined() ? dense.to(at::kFloat).contiguous() : dense);
  }
  // A block may hold parts of several parameters; the last block ends with zeros.
  rows_->push_written(blocks_, [&](std::size_t block, std::span<float> out) {
    auto first = static_cast<std::int64_t>(block * out.size());
    auto i = std::upper_bound(begins_.begin(), begins_.end(), first) - begins_.begin() - 1;
    for (float* to = out.data(); to != out.data() + out.size(); ++i) {
      const std::int64_t left = out.data() + out.size() - to;
      if (i == std::ssize(parameters_)) {
        std::fill_n(to, left, 0.0F);
        break;
      }
      const std::int64_t count = std::min(left, begins_[i + 1] - first);
      if (gradients[i].defined()) {
        std::copy_n(gradients[i].data_ptr<float>() + (first - begins_[i]), count, to);
      } else {
        std::fill_n(to, count, 0.0F);
      }
      to += count;
      first += count;
    }
    optim::scale(out.data(), std::ssize(out), static_cast<float>(gradient_scale_));
  });
}

void DenseTable::fill() {
  TableCut cut = rows_->cut();  // has the options of the table, which is empty
  const std::size_t width = rows_->width();
  cut.ids = blocks_;
  cut.sightings.assign(blocks_.size(), 1);
  cut.used.assign(blocks_.size(), static_cast<std::int64_t>(cut.now));
  cut.admitted.assign(blocks_.size(), 1);
  cut.rows.assign(blocks_.size() * cut.row_floats, 0);
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    std::copy_n(values().data() + i * width, width, cut.rows.data() + i * cut.row_floats);
  rows_->restore(cut);
}

DenseTable::DenseTable(Tables& tables, const std::string& name, std::vector<at::Tensor> parameters,
                       const DenseOptions& options, const TableOptions& table_options)
    : rows_(tables.open_rows(name, row_options(name, parameters, options), table_options)),
      parameters_(std::move(parameters)),
      gradient_scale_(options.gradient_scale),
      num_elements_(num_elements_of(parameters_)) {
  const std::int64_t block = rows_->width();
  blocks_.resize(static_cast<std::size_t>((num_elements_ + block - 1) / block));
  std::iota(blocks_.begin(), blocks_.end(), Id{0});
  const at::NoGradGuard no_grad;
  values_ = at::zeros({static_cast<std::int64_t>(blocks_.size()) * block}, at::kFloat);
  for (const at::Tensor& parameter : parameters_) {
    const at::Tensor place =
        values_.narrow(0, begins_.back(), parameter.numel()).view(parameter.sizes());
    place.copy_(parameter.detach());
    parameter.set_data(place);
    begins_.push_back(begins_.back() + parameter.numel());
  }

  // One worker fills the table; the others wait for it.
  Store& store = *tables.workers().store();
  const std::string place = table_options.servers.empty() ? host_token() : "servers";
  const std::string key = fmt::format("dense-tables/{}/{}/{}", place, name, rows_->stats().epoch);
  if (store.add(key, 1) == 1) {
    if (rows_->stats().rows == 0) fill();
    store.set(key + "/filled", "1");
  } else {
    store.wait({key + "/filled"}, table_options.timeout);
  }
  pull();
}

}  // namespace paceline::tables
