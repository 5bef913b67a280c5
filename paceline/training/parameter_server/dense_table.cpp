#include "paceline/training/parameter_server/dense_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/host.h"
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

template <class Use>
void DenseTable::for_parameters(Use use) {
  float* place = values_.data();
  for (const at::Tensor& parameter : parameters_) {
    use(parameter, at::from_blob(place, parameter.sizes(), at::kFloat));
    place += parameter.numel();
  }
}

void DenseTable::pull() {
  rows_->pull(blocks_, values_);
  write_parameters();
}

std::uint64_t DenseTable::pull_snapshot() {
  const TableSnapshot snapshot = rows_->snapshot();
  snapshot.pull(blocks_, values_);
  write_parameters();
  return snapshot.version();
}

void DenseTable::write_parameters() {
  const at::NoGradGuard no_grad;
  for_parameters([](const at::Tensor& parameter, const at::Tensor& values) {
    parameter.detach().copy_(values);
  });
}

void DenseTable::push() {
  const at::NoGradGuard no_grad;
  for_parameters([&](const at::Tensor& parameter, const at::Tensor& values) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) {
      values.zero_();
    } else if (gradient_scale_ == 1) {
      values.copy_(gradient);
    } else {
      at::mul_out(const_cast<at::Tensor&>(values), gradient, at::scalar_tensor(gradient_scale_));
    }
  });
  std::fill(values_.begin() + num_elements_, values_.end(), 0.0F);
  rows_->push(blocks_, values_);
}

void DenseTable::fill() {
  const at::NoGradGuard no_grad;
  for_parameters([](const at::Tensor& parameter, const at::Tensor& values) {
    values.copy_(parameter.detach());
  });
  TableCut cut = rows_->cut();  // of an empty table: its options
  const std::size_t width = rows_->width();
  cut.ids = blocks_;
  cut.sightings.assign(blocks_.size(), 1);
  cut.used.assign(blocks_.size(), static_cast<std::int64_t>(cut.now));
  cut.admitted.assign(blocks_.size(), 1);
  cut.rows.assign(blocks_.size() * cut.row_floats, 0);
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    std::copy_n(values_.data() + i * width, width, cut.rows.data() + i * cut.row_floats);
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
  values_.resize(blocks_.size() * rows_->width());

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
