#pragma once

// Learning rates that change during a training. A schedule takes the rates that the optimizer's
// groups have when it is made as their base rates, and sets every group's rate from its own base.
// Formulas and defaults are PyTorch's, in closed form: a rate depends only on the number of steps,
// so a resumed schedule goes on with the same bits.
//
//   StepLr schedule(optimizer, {.step_size = 30});
//   ... optimizer.step(); schedule.step();
//
// Its state is words, for a checkpoint: its parameters, which must be the same when it is resumed,
// and how far it has come.
//
// Ownership: a schedule refers to its optimizer, which must outlive it. Thread safety: none.

#include <cstdint>
#include <vector>

#include "paceline/training/optim/optimizer.h"
#include "paceline/training/optim/words.h"

namespace paceline::optim {

class Schedule {
 public:
  virtual ~Schedule() = default;
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  // "step", "multi_step", "cosine_annealing", "one_cycle" or "reduce_on_plateau".
  virtual const char* name() const = 0;
  const std::vector<double>& base_rates() const { return base_rates_; }

  Words state() const;
  // Error(kInvalid) that lists what differs when `state` is of a schedule with other parameters:
  // another kind, other options, other base rates.
  void require_own(const Words& state) const;
  // As require_own(); then goes on from there and sets the rates of that moment.
  void set_state(const Words& state);

 protected:
  explicit Schedule(Optimizer& optimizer)
      : optimizer_(optimizer), base_rates_(optimizer.learning_rates()) {}

  Optimizer& optimizer() const { return optimizer_; }
  // Error(kInvalid) when the optimizer has got groups of which this has no base rates.
  void require_own_groups() const;
  // What must be the same when the schedule is resumed.
  virtual Words options() const = 0;
  virtual Words progress() const = 0;
  virtual void set_progress(const Words& words) = 0;

 private:
  Words parameters() const;

  Optimizer& optimizer_;
  const std::vector<double> base_rates_;  // [group]
};

// A schedule whose rates are a function of the number of steps.
class LrSchedule : public Schedule {
 public:
  // Call it after each step of the optimizer or once an epoch, in whatever the options count.
  void step();
  std::int64_t num_steps() const { return num_steps_; }

 protected:
  using Schedule::Schedule;

  virtual double rate(std::size_t group, std::int64_t step) const = 0;
  // Sets the rates of step num_steps(). Constructors end with it.
  virtual void apply();

 private:
  Words progress() const override;
  void set_progress(const Words& words) override;

  std::int64_t num_steps_ = 0;
};

}  // namespace paceline::optim
