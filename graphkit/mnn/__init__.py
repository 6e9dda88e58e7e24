"""Everything that touches MNN: conversion, reading .mnn files, running them in a child process."""
