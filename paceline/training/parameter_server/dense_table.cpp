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

DenseTable::DenseTable(std::unique_ptr<Rows> rows, std::vector<at::Tensor> parameters,
                       const DenseOptions& options)
    : rows_(std::move(rows)),
      parameters_(std::move(parameters)),
      gradient_scale_(options.gradient_scale) {
  for (const at::Tensor& parameter : parameters_) num_elements_ += parameter.numel();
  const std::int64_t block = rows_->width();
  blocks_.resize(static_cast<std::size_t>((num_elements_ + block - 1) / block));
  std::iota(blocks_.begin(), blocks_.end(), Id{0});
  values_.resize(blocks_.size() * rows_->width());
}

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

std::unique_ptr<DenseTable> open_dense(Tables& tables, const std::string& name,
                                       std::vector<at::Tensor> parameters,
                                       const DenseOptions& options,
                                       const TableOptions& table_options) {
  check(!parameters.empty(), "open_dense: table '{}': there are no parameters", name);
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    check(parameter.is_cpu() && parameter.scalar_type() == at::kFloat,
          "open_dense: table '{}': parameter {} is {}, but a table holds float32 on the CPU", name,
          i, parameter.toString());
    elements += parameter.numel();
  }
  check(!std::holds_alternative<RowAdagrad>(options.optimizer),
        "open_dense: table '{}': the steps of RowAdagrad depend on the blocks; use SGD, Adam or "
        "Adagrad",
        name);
  check(options.block > 0, "open_dense: table '{}': the block must have at least 1 element", name);
  const RowOptions row_options{.width = options.block,
                               .optimizer = options.optimizer,
                               .consistency = options.consistency,
                               .capacity = static_cast<std::uint64_t>(elements / options.block + 1),
                               .initial_range = 0};
  std::unique_ptr<DenseTable> table(new DenseTable(
      tables.open_rows(name, row_options, table_options), std::move(parameters), options));

  // One worker fills the table; the others wait for it.
  Store& store = *tables.workers().store();
  const std::string place = table_options.servers.empty() ? host_token() : "servers";
  const std::string key =
      fmt::format("dense-tables/{}/{}/{}", place, name, table->rows().stats().epoch);
  if (store.add(key, 1) == 1) {
    if (table->rows().stats().rows == 0) table->fill();
    store.set(key + "/filled", "1");
  } else {
    store.wait({key + "/filled"}, table_options.timeout);
  }
  table->pull();
  return table;
}

}  // namespace paceline::tables
