// SPDX-License-Identifier: Apache-2.0
// Teaches the model inside wick from a folder of examples, then asks it something.
//   train_and_generate DATA OUT "a question"
#include <iostream>

#include "wick/wick.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: train_and_generate DATA OUT QUESTION\n";
    return 2;
  }
  try {
    wick::Engine engine;
    wick::Model model = wick::Model::load(engine);

    wick::TrainOptions options;
    options.data = argv[1];
    options.adapter_path = argv[2];
    options.learning_rate = 2e-3;
    options.epochs = 2;
    wick::TrainCallbacks callbacks;
    callbacks.on_step = [](const wick::StepReport& r) {
      std::cerr << "step " << r.step << "/" << r.steps << "  loss " << r.loss << "\n";
    };
    wick::Trainer(model, options).run(callbacks);

    std::cout << wick::Generator(model).generate(argv[3]).text << "\n";
  } catch (const wick::Error& e) {
    std::cerr << "train_and_generate: " << e.what() << "\n";
    return 1;
  }
}
