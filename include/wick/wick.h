// SPDX-License-Identifier: Apache-2.0
// wick: fine-tune language models with LoRA and run the result, from C++. Start here.
//
//   wick::Engine engine;                                     // a device
//   wick::Model model = wick::Model::load(engine, {});       // weights and tokenizer
//   wick::Trainer(model, {.data = "data"}).run();            // an adapter, attached to the model
//   wick::Generator(model).generate("Hello").text;
#pragma once

#include "wick/convert.h"
#include "wick/dataset.h"
#include "wick/engine.h"
#include "wick/error.h"
#include "wick/evaluator.h"
#include "wick/forecast.h"
#include "wick/generator.h"
#include "wick/model.h"
#include "wick/sweep.h"
#include "wick/tokenizer.h"
#include "wick/trainer.h"
#include "wick/version.h"
