# wick_layer(NAME folder SOURCES … [LIBS …]): one static library per folder of src/, linked to the
# folders of its line in src/deps.txt, so that a wrong include fails to link as well as to check.
# wick_test(NAME target SOURCES … [LIBS …] [LABELS …]): a GoogleTest binary.
# wick_fuzzer(NAME target SOURCES … [LIBS …] [SEEDS folder …]): a libFuzzer binary with a short run
# as its test (label fuzz); only when WICK_FUZZ is on, which instruments every layer.

find_program(WICK_CCACHE ccache)
if(WICK_CCACHE)
  # Without this ccache passes files with a precompiled header by.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${WICK_CCACHE})
endif()

add_library(wick_flags INTERFACE)
target_include_directories(wick_flags INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src>)
# -ffp-contract=off: whether a product and a sum become one instruction must not depend on the
# compiler's mood; kernels ask for fused multiply-add by name.
target_compile_options(wick_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra
  -Wno-unused-parameter -Werror=switch -Werror=return-type -ffp-contract=off>)
# g++ 12's flow analysis sees overruns and overlaps in std::string that are not there (GCC bugs
# 105329, 105651); the sanitizers look for the real ones.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(wick_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds
    -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread>)
endif()
if(WICK_WERROR)
  target_compile_options(wick_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(WICK_SANITIZE)
  target_compile_options(wick_flags INTERFACE -fsanitize=${WICK_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all -g1)
  target_link_options(wick_flags INTERFACE -fsanitize=${WICK_SANITIZE})
endif()

if(WICK_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "WICK_FUZZ needs clang: cmake --preset fuzz")
  endif()
  target_compile_options(wick_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined
    -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(wick_flags INTERFACE -fsanitize=address,undefined)
  add_custom_target(fuzzers)
endif()

if(WICK_SANITIZE OR WICK_FUZZ)
  target_compile_definitions(wick_flags INTERFACE WICK_FEW_RUNGS)
endif()

find_package(Threads REQUIRED)

# How hard the compiler tries, by folder: most in kernels; well where text and numbers are worked on;
# a little where code only connects, which takes a quarter off a cold build and no time of a run.
# Instrumented builds keep their preset's level.
if(WICK_SANITIZE OR WICK_FUZZ OR CMAKE_BUILD_TYPE STREQUAL Debug)
  set(wick_levels preset)
else()
  set(wick_levels -O2 -O1)
endif()
function(wick_level folder out)
  if(wick_levels STREQUAL preset)
    set(${out} preset PARENT_SCOPE)
  elseif(folder MATCHES "^(backend|quant|infer)$")
    set(${out} -O3 PARENT_SCOPE)
  elseif(folder MATCHES "^(base|io|text)$")
    set(${out} -O2 PARENT_SCOPE)
  else()
    set(${out} -O1 PARENT_SCOPE)
  endif()
endfunction()
function(wick_set_level target level)
  if(NOT level STREQUAL preset)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${level}>)
  endif()
endfunction()

# The JSON header alone takes three seconds a file; a precompiled one takes a fifth off a cold build.
# One for each level, since the compiler takes none of another. clang refuses one that was made with
# other macros, so it does without.
if(WICK_PRECOMPILE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  foreach(level IN LISTS wick_levels)
    add_library(wick_pch${level} STATIC ${CMAKE_SOURCE_DIR}/cmake/precompiled.cpp)
    target_link_libraries(wick_pch${level} PUBLIC wick_flags Threads::Threads)
    wick_set_level(wick_pch${level} ${level})
    target_precompile_headers(wick_pch${level} PRIVATE <algorithm> <filesystem> <functional> <map>
      <nlohmann/json.hpp> <optional> <sstream> <string> <vector>)
  endforeach()
  target_compile_options(wick_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()

function(wick_use_precompiled target level)
  if(TARGET wick_pch${level})
    target_precompile_headers(${target} REUSE_FROM wick_pch${level})
  endif()
endfunction()

# Reads "folder: a b c   comment" from src/deps.txt.
function(wick_folder_deps folder out)
  file(STRINGS ${CMAKE_SOURCE_DIR}/src/deps.txt lines REGEX "^${folder}:")
  string(REGEX REPLACE "^${folder}:[ ]*([^#]*).*$" "\\1" deps "${lines}")
  string(STRIP "${deps}" deps)
  string(REGEX REPLACE "[ ]+" ";" deps "${deps}")
  set(${out} "${deps}" PARENT_SCOPE)
endfunction()

set_property(GLOBAL PROPERTY WICK_LAYERS "")

function(wick_layer)
  cmake_parse_arguments(A "" "NAME" "SOURCES;LIBS" ${ARGN})
  set(target wick_${A_NAME})
  add_library(${target} STATIC ${A_SOURCES})
  target_link_libraries(${target} PUBLIC wick_flags Threads::Threads ${A_LIBS})
  wick_folder_deps(${A_NAME} deps)
  foreach(dep ${deps})
    target_link_libraries(${target} PUBLIC wick_${dep})
  endforeach()
  wick_level(${A_NAME} level)
  wick_set_level(${target} ${level})
  # Kernels include little.
  if(NOT A_NAME MATCHES "^(backend|quant)$")
    wick_use_precompiled(${target} ${level})
  endif()
  set_property(GLOBAL APPEND PROPERTY WICK_LAYERS ${target})
endfunction()

# A test's own code waits for what it tests: optimising it costs more than it saves.
function(wick_quick_to_compile target)
  if(NOT wick_levels STREQUAL preset)
    wick_set_level(${target} -O0)
  endif()
endfunction()

function(wick_test)
  cmake_parse_arguments(A "" "NAME" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${A_NAME} ${A_SOURCES})
  target_link_libraries(${A_NAME} PRIVATE wick_flags ${A_LIBS} GTest::gtest GTest::gtest_main)
  target_include_directories(${A_NAME} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${A_NAME} PRIVATE WICK_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  wick_quick_to_compile(${A_NAME})
  add_test(NAME ${A_NAME} COMMAND ${A_NAME})
  if(NOT A_LABELS)
    set(A_LABELS fast)
  endif()
  set_tests_properties(${A_NAME} PROPERTIES LABELS "${A_LABELS}")
endfunction()

function(wick_fuzzer)
  if(NOT WICK_FUZZ)
    return()
  endif()
  cmake_parse_arguments(A "" "NAME" "SOURCES;LIBS;SEEDS" ${ARGN})
  add_executable(${A_NAME} ${A_SOURCES})
  target_link_libraries(${A_NAME} PRIVATE wick_flags ${A_LIBS})
  target_link_options(${A_NAME} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzzers ${A_NAME})
  # What a run finds new lands in the first folder and starts the next run.
  set(corpus ${CMAKE_BINARY_DIR}/fuzz_corpus/${A_NAME})
  file(MAKE_DIRECTORY ${corpus})
  add_test(NAME ${A_NAME} COMMAND ${A_NAME} -runs=20000 -max_total_time=10 -timeout=10
    -rss_limit_mb=2048 -max_len=4096 -seed=1 -print_final_stats=1
    -artifact_prefix=${CMAKE_BINARY_DIR}/${A_NAME}- ${corpus} ${A_SEEDS})
  set_tests_properties(${A_NAME} PROPERTIES LABELS fuzz)
endfunction()
