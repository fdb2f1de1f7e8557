# cmake --install: the headers, one libwick.a with every layer but the command line's, and the
# package file for find_package(wick). src/app installs the binary.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(layers GLOBAL PROPERTY WICK_LAYERS)
list(REMOVE_ITEM layers wick_app)
set(objects)
foreach(layer ${layers})
  list(APPEND objects $<TARGET_OBJECTS:${layer}>)
endforeach()
add_library(wick_library STATIC ${objects})
set_target_properties(wick_library PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME wick)

install(TARGETS wick_library ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/wick DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/wick)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/wickConfig.cmake.in
  ${CMAKE_BINARY_DIR}/wickConfig.cmake INSTALL_DESTINATION ${package_dir}
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/wickConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/wickConfig.cmake ${CMAKE_BINARY_DIR}/wickConfigVersion.cmake
  DESTINATION ${package_dir})
