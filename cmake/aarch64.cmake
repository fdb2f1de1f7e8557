# Toolchain for 64-bit ARM on a Debian of another architecture: Debian's cross compiler, the
# libraries that tools/aarch64.sh unpacks into WICK_AARCH64_ROOT, and qemu to run what was built.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(WICK_AARCH64_ROOT ${CMAKE_CURRENT_LIST_DIR}/../build-aarch64/root CACHE PATH
  "where the arm64 packages are unpacked")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES WICK_AARCH64_ROOT)
get_filename_component(root ${WICK_AARCH64_ROOT} ABSOLUTE)
set(libraries ${root}/usr/lib/aarch64-linux-gnu)

set(CMAKE_FIND_ROOT_PATH ${root} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${libraries}/pkgconfig:${root}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${root})

# Headers that their packages' files take for standard ones are not named by them.
set(CMAKE_CXX_FLAGS_INIT "-isystem ${root}/usr/include")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-L${libraries} -Wl,-rpath-link,${libraries}")
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu -E
  LD_LIBRARY_PATH=${libraries})
