// For `import`: the same code as `require` gets, so that there is one of each class in a program.
export * from "./index.js";
