/* The style sheets travel without their comments and spaces, the code without what browsers of today do not need. */

const { rspack } = require('@rspack/core');

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
  },
  optimization: {
    minimizer: [
      new rspack.SwcJsMinimizerRspackPlugin({
        extractComments: false,
        minimizerOptions: {
          ecma: 2022,
          compress: { ecma: 2022, passes: 3, unsafe_arrows: true, keep_fargs: false },
          format: { ecma: 2022, comments: false }
        }
      })
    ]
  }
};
