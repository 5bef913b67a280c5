#pragma once

// The dense parameters of a model in a table (engine/tables): a parameter server. The optimizer
// runs where the parameters are; the Consistency limits how many ticks apart the workers may be.
//
//   tables::DenseTable dense(tables, "mlp", model->parameters(),
//                            {.optimizer = tables::SGD{.lr = 0.1},
//                             .consistency = tables::Consistency::bounded(4),
//                             .gradient_scale = 1.0 / num_workers});
//   for (...) {
//     dense.pull();
//     model->zero_grad(true);
//     loss_of(model, batch).backward();
//     dense.push();
//     dense.tick();
//   }
//
// The parameters become views of one tensor, in which they follow each other. A row of the table is
// a block of that tensor, and is read into it without an intermediate copy. With a gradient_scale
// of 1 / W, where the number W of workers is a power of two, a synchronous table gives the same
// bits as DistributedDataParallel with the same batches and the optimizer of the same name.
//
// Thread safety: none; one thread trains.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/tables/tables.h"

namespace paceline::tables {

struct DenseOptions {
  RowOptimizer optimizer = SGD{};  // not RowAdagrad, whose steps depend on the blocks
  Consistency consistency = Consistency::synchronous();
  double gradient_scale = 1;   // multiplies the gradients before they are pushed
  std::uint32_t block = 4096;  // elements of a row of the table; the same on all workers
};

class DenseTable {
 public:
  // Opens the table of these parameters, and copies its values into them: the first worker fills
  // the table with its own values, so all workers begin with these. The parameters get new memory,
  // which they must keep. Throws Error(kInvalid) for parameters that are not float32 on the CPU
  // or are listed twice and for impossible options; also throws the errors of Tables::open_rows().
  DenseTable(Tables& tables, const std::string& name, std::vector<at::Tensor> parameters,
             const DenseOptions& options = {}, const TableOptions& table_options = {});

  // The functions below are those of Rows, for all parameters, with the same errors.

  // Copies the table's values into the parameters. A block includes a push entirely or not at all;
  // in an asynchronous or bounded table, different blocks may include different pushes. After an
  // exception some blocks may already have new values: pull again.
  void pull();
  // Like pull(), but all values are those of one moment. A push that is being applied then may
  // have changed the first blocks only, unless the table is synchronous. If the table is on
  // servers, each server has its own moment. Returns the largest clock that any worker had reached.
  std::uint64_t pull_snapshot();
  // Pushes the gradients of the parameters; an undefined gradient counts as zeros. The parameters
  // and their gradients do not change.
  void push();
  void tick() { rows_->tick(); }
  void set_lr(double lr) { rows_->set_lr(lr); }

  Rows& rows() const { return *rows_; }
  std::int64_t num_elements() const { return num_elements_; }

 private:
  void require_memory(const char* operation) const;
  void fill();
  std::span<float> values();
  void parameters_changed();

  const std::unique_ptr<Rows> rows_;
  const std::vector<at::Tensor> parameters_;
  const double gradient_scale_;
  std::int64_t num_elements_ = 0;
  std::vector<Id> blocks_;
  at::Tensor values_;                       // of all blocks, padded with zeros
  std::vector<std::int64_t> begins_ = {0};  // the offset of each parameter in values_, and the end
};

}  // namespace paceline::tables
