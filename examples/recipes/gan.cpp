// A GAN: two wrapped models in one program. The generator learns a normal distribution with mean 3
// and standard deviation 0.5:
//
//   paceline run --nproc-per-node 2 gan

#include <cstdio>

#include <torch/torch.h>

#include "paceline/paceline.h"

torch::nn::Sequential make_generator() {
  return torch::nn::Sequential(torch::nn::Linear(4, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 1));
}

torch::nn::Sequential make_discriminator() {
  return torch::nn::Sequential(torch::nn::Linear(1, 32), torch::nn::LeakyReLU(),
                               torch::nn::Linear(32, 1));
}

int main() {
  const auto group = paceline::init_process_group();
  torch::manual_seed(group->rank());  // each rank draws its own samples; the weights are rank 0's
  paceline::DistributedDataParallel generator(make_generator(), group);
  paceline::DistributedDataParallel discriminator(make_discriminator(), group);
  const auto options = torch::optim::AdamOptions(2e-3).betas({0.5, 0.999});
  torch::optim::Adam generator_step(generator.parameters(), options);
  torch::optim::Adam discriminator_step(discriminator.parameters(), options);
  const auto loss = [](const at::Tensor& logits, double label) {
    return torch::binary_cross_entropy_with_logits(logits, torch::full_like(logits, label));
  };

  for (int step = 0; step < 1500; ++step) {
    const auto real = torch::randn({64, 1}) * 0.5 + 3;
    const auto fake = generator.forward(torch::randn({64, 4}));

    discriminator_step.zero_grad();
    // One pass for real and fake samples: two passes would average the gradients twice.
    const auto judged = discriminator.forward(torch::cat({real, fake.detach()}));
    (loss(judged.slice(0, 0, 64), 1) + loss(judged.slice(0, 64), 0)).backward();
    discriminator_step.step();

    generator_step.zero_grad();
    loss(discriminator.forward(fake), 1).backward();  // the next step drops discriminator gradients
    generator_step.step();
  }
  const torch::NoGradGuard no_grad;
  const auto made = generator.module().forward(torch::randn({5000, 4}));
  if (group->rank() == 0)
    std::printf("mean %.2f, standard deviation %.2f\n", made.mean().item<double>(),
                made.std().item<double>());
}
