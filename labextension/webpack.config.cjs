/* The style sheets travel without their comments and spaces. */

module.exports = {
  module: {
    rules: [
      {
        test: /\.css$/,
        enforce: 'pre',
        loader: 'builtin:lightningcss-loader',
        options: { minify: true, targets: 'chrome 123' }
      }
    ]
  }
};
